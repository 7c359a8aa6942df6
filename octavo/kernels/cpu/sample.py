"""Masking, sampling and ranking of tokens on the native kernels. What those do not cover (another device, an unusual
stride) runs the torch reference, which gives the same bits.
"""

from typing import Any

import torch
from torch import Tensor

from octavo.kernels.cpu import native
from octavo.ops import mask_logits as mask_logits_op
from octavo.ops import rank_tokens as rank_tokens_op
from octavo.ops import sample as sample_op
from octavo.ops.random import DrawKeys
from octavo.ops.rank_tokens import RankedTokens
from octavo.ops.sample import SampleParams

_native: Any = native.load()


def sample(logits: Tensor, params: SampleParams, out: Tensor | None = None, processed: Tensor | None = None) -> Tensor:
    """See `octavo.ops.sample`."""
    target = logits.new_empty(len(logits), dtype=torch.int64) if out is None else out
    columns = (params.temperature, params.top_k, params.top_p, params.min_p, *_columns(params.keys))
    covered = _covers(logits) and target.is_contiguous() and all(c.is_cpu and c.is_contiguous() for c in columns)
    if not covered or not (processed is None or processed.is_contiguous()):
        return sample_op.sample.reference(logits, params, out, processed)
    _native.sample(
        *(target.data_ptr(), 0 if processed is None else processed.data_ptr()),
        *(logits.data_ptr(), logits.stride(0), *logits.shape),
        *(column.data_ptr() for column in columns),
    )
    return target


def rank_tokens(logits: Tensor, token_ids: Tensor, num_top: int, *, normalized: bool) -> RankedTokens:
    """See `octavo.ops.rank_tokens`."""
    if not _covers(logits) or not token_ids.is_contiguous():
        return rank_tokens_op.rank_tokens.reference(logits, token_ids, num_top, normalized=normalized)
    count = len(logits)
    ids = token_ids.new_empty((count, 1 + num_top))
    log_sums = logits.new_empty(count, dtype=torch.float64)
    ranked = RankedTokens(ids, logits.new_empty(ids.shape), token_ids.new_empty(count), log_sums)
    _native.rank_tokens(
        *(out.data_ptr() for out in ranked),
        *(logits.data_ptr(), logits.stride(0), *logits.shape, token_ids.data_ptr(), num_top, normalized),
    )
    return ranked


def mask_logits(logits: Tensor, index: Tensor, bits: Tensor) -> None:
    """See `octavo.ops.mask_logits`."""
    if not _covers(logits) or not (index.is_contiguous() and bits.is_contiguous()):
        return mask_logits_op.mask_logits.reference(logits, index, bits)
    _native.mask_logits(
        *(logits.data_ptr(), logits.stride(0), len(index), logits.shape[1], index.data_ptr(), bits.data_ptr())
    )
    return None


def _covers(logits: Tensor) -> bool:
    return _native is not None and logits.is_cpu and logits.dtype is torch.float32 and logits.stride(1) == 1


def _columns(keys: DrawKeys) -> tuple[Tensor, Tensor, Tensor]:
    return keys.seed, keys.sample_index, keys.position
