"""A GGUF file assembled byte by byte, so that any one of its fields can lie. Knows the format, not our reader."""

import struct
from dataclasses import dataclass, field

U32, U64, STRING, ARRAY = 4, 10, 8, 9
F32 = 0


def text(value: str) -> bytes:
    """Length and UTF-8."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, value_type: int, value: bytes) -> bytes:
    """One metadata pair."""
    return text(name) + struct.pack("<I", value_type) + value


def array(item_type: int, count: int, items: bytes = b"") -> bytes:
    """An array value that claims `count` items."""
    return struct.pack("<IQ", item_type, count) + items


def tensor(name: str, dims: tuple[int, ...], offset: int, type_id: int = F32) -> bytes:
    """One entry of the tensor table; dims innermost first, as the file has them."""
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)


@dataclass
class RawGGUF:
    """The parts of a file; the default is a sound one with two float32 tensors of 8 values."""

    magic: bytes = b"GGUF"
    version: int = 3
    keys: list[bytes] = field(default_factory=lambda: [key("general.architecture", STRING, text("llama"))])
    tensors: list[bytes] = field(default_factory=lambda: [tensor("first", (8,), 0), tensor("second", (4, 2), 32)])
    num_tensors: int | None = None
    num_keys: int | None = None
    data: bytes = bytes(64)

    def bytes(self) -> bytes:
        """The file, header padded to 32 bytes."""
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        head = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_keys)
        head += b"".join(self.keys) + b"".join(self.tensors)
        return head + bytes(-len(head) % 32) + self.data
