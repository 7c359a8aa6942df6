"""Ways to break "same bits" on purpose, to see that the fuzzer sees them."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.ops.empty_weight import Weight, dense
from octavo.ops.random import DrawKeys
from octavo.ops.sample import SampleParams
from octavo.worker.sampling_state import SamplingState


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """A product whose sum is cut in two where there are many rows, as a BLAS does it."""
    columns = dense(weight).t()
    if len(x) < 8:
        product = x @ columns
    else:
        half = x.shape[1] // 2
        product = x[:, :half] @ columns[:half] + x[:, half:] @ columns[half:]
    product = product if bias is None else product + bias
    return product if out is None else out.copy_(product)


sound_gather = SamplingState.gather


def gather_by_row(state: SamplingState, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> SampleParams:
    """`SamplingState.gather` with random numbers that belong to the row, as a generator per batch has it."""
    params = sound_gather(state, rows, positions)
    keys = params.keys
    params.keys = DrawKeys(torch.from_numpy(np.asarray(rows, np.int64)), keys.sample_index, keys.position)
    return params
