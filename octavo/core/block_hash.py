"""Names for the content of full pages: a sha256 chain over tokens and everything else that shapes keys and values.

Two pages with the same hash hold the same keys and values, or sha256 is broken. Knows no pools or requests.
"""

from collections.abc import Sequence
from hashlib import sha256

import msgspec

# msgpack writes lengths and types, so no two different inputs encode to the same bytes.
_encode = msgspec.msgpack.Encoder().encode


def hash_root(
    *,
    cache_salt: str | None = None,
    adapter: str | None = None,
    adapter_version: int = 0,
    weight_version: int = 0,
) -> bytes:
    """The parent of a sequence's first block: what applies to all of its tokens. [32 bytes]"""
    return sha256(_encode((cache_salt, adapter, adapter_version, weight_version))).digest()


def hash_block(parent: bytes, token_ids: Sequence[int], mm_hashes: Sequence[bytes] = ()) -> bytes:
    """The name of one full block. [32 bytes]

    Args:
        parent: hash of the block before it, or `hash_root`.
        token_ids: the block's tokens, all of them.
        mm_hashes: digests of the images or audio whose placeholder tokens lie in this block.
    """
    return sha256(_encode((parent, token_ids, mm_hashes))).digest()


def extend_chain(
    block_hashes: list[bytes], root: bytes, token_ids: Sequence[int], num_blocks: int, block_size: int
) -> None:
    """Append hashes to `block_hashes` until the first `num_blocks` blocks of `token_ids` have theirs."""
    for start in range(len(block_hashes) * block_size, num_blocks * block_size, block_size):
        parent = block_hashes[-1] if block_hashes else root
        block_hashes.append(hash_block(parent, token_ids[start : start + block_size]))
