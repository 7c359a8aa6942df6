"""Store the keys and values of this step in their pages, before attention reads them."""

from torch import Tensor

from octavo.ops.dispatch import op


@op
def write_kv(k: Tensor, v: Tensor, pages: Tensor, slot_mapping: Tensor) -> None:
    """Scatter each token's key and value to its slot.

    Args:
        k, v: [T, G, D]; T may be strided.
        pages: [2, B, G, block, D], **mutated**; keys, then values, rounded to the dtype of the pages.
        slot_mapping: [T] int64, page * block + offset; -1 writes nothing (padding).
    """
    if pages.is_meta:
        return
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    block_size = pages.shape[3]
    where = (slots // block_size, slots % block_size)
    for cache, new in zip(pages.transpose(2, 3), (k, v), strict=True):  # [B, block, G, D]
        cache[where] = new[kept].to(cache.dtype)
