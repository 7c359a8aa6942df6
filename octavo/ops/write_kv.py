"""Store the keys and values of this step in their pages, before attention reads them."""

from torch import Tensor

from octavo.ops.dispatch import op


@op
def write_kv(k: Tensor, v: Tensor | None, pages: Tensor, slot_mapping: Tensor) -> None:
    """Scatter each token's key and value to its slot.

    Args:
        k: [T, G, D]; T may be strided.
        v: [T, G, V], V at most D; None where attention reads values out of the keys (MLA).
        pages: [2, B, G, block, D], **mutated**; keys, then values, rounded to the dtype of the pages. Without v,
            [1, B, G, block, D].
        slot_mapping: [T] int64, page * block + offset; -1 writes nothing (padding).
    """
    if pages.is_meta:
        return
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    block_size = pages.shape[3]
    where = (slots // block_size, slots % block_size)
    new = [k] if v is None else [k, v]
    for cache, rows in zip(pages.transpose(2, 3), new, strict=True):  # [B, block, G, D]
        cache[..., : rows.shape[2]][where] = rows[kept].to(cache.dtype)
