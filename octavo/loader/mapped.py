"""A weight file as one byte tensor that pages in as it is read; its slices share memory with the page cache."""

from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor


class MappedFile:
    """A file mapped private and read-only in effect: writing to a slice never reaches the disk."""

    def __init__(self, path: str) -> None:
        self.path = path

    @cached_property
    def _bytes(self) -> Tensor:
        return torch.from_file(self.path, shared=False, size=Path(self.path).stat().st_size, dtype=torch.uint8)

    def read(self, offset: int, num_bytes: int) -> Tensor:
        """Bytes [num_bytes] from `offset`, without a copy."""
        return self._bytes[offset : offset + num_bytes]

    def tensor(self, offset: int, num_bytes: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """The same bytes as a tensor of `shape`; copied only where the file does not align them to the type."""
        stored = self.read(offset, num_bytes)
        if offset % dtype.itemsize:
            stored = stored.clone()
        return stored.view(dtype).view(shape)
