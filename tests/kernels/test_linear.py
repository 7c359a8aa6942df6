"""Products with packed weights, in every tier: against the torch reference, and bit for bit against themselves."""

import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from octavo.kernels.cpu import linear as native_linear
from octavo.kernels.cpu.linear import PanelWeight, embedding, empty_weight, linear, logits
from octavo.ops.dispatch import OPS
from tests.kernels.conftest import DTYPES, PRODUCT_TIERS, TIERS, TOLERANCE

CPU = torch.device("cpu")
SHAPES = [(1, 1), (31, 7), (32, 64), (33, 65), (100, 33), (192, 576), (257, 1030), (70, 2500)]
"""[N, K] below, at and around a panel, every tile's width, a pair of columns, and the steps that are done at once."""


def rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def packed(weight: Tensor) -> PanelWeight:
    made = empty_weight(*weight.shape, weight.dtype, weight.device)
    assert isinstance(made, PanelWeight)
    return made.copy_(weight)


def assert_close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    """Within `dtype`'s rounding of values that are as large as a sum of `want`'s can be."""
    assert got.dtype is want.dtype
    torch.testing.assert_close(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * float(want.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_reference(product_tier: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight, bias = rand(*shape, dtype=dtype), rand(shape[0], dtype=dtype, seed=1)
    matrix = packed(weight)
    for tokens in (1, 2, 5, 13):
        x = rand(tokens, shape[1], dtype=dtype, seed=tokens)
        exact = x.double() @ weight.double().t()
        assert_close(linear(x, matrix), exact.to(dtype), dtype)
        assert_close(linear(x, matrix, bias), (exact + bias.double()).to(dtype), dtype)
        assert_close(logits(x, matrix), exact.float(), torch.float32)
        assert_close(logits(x, matrix), OPS["logits"].reference(x, weight), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(224, 576), (70, 2500)])
def test_bits_of_a_row_do_not_depend_on_its_batch_or_on_threads(
    product_tier: str, shape: tuple[int, int], dtype: torch.dtype, kernels: ModuleType
) -> None:
    matrix, bias = packed(rand(*shape, dtype=dtype)), rand(shape[0], dtype=dtype, seed=1)
    x = rand(256, shape[1], dtype=dtype, seed=2)
    kernels.set_num_threads(1)
    alone = torch.cat([linear(row, matrix, bias) for row in x.split(1)])
    scores = torch.cat([logits(row, matrix) for row in x.split(1)])
    order = torch.randperm(256, generator=torch.Generator().manual_seed(3))
    for threads in (1, 2, 3):
        kernels.set_num_threads(threads)
        for tokens in (2, 7, 16, 33, 256):
            assert torch.equal(linear(x[-tokens:], matrix, bias), alone[-tokens:])
        assert torch.equal(linear(x[order], matrix, bias), alone[order])
        assert torch.equal(logits(x[order], matrix), scores[order])


@pytest.mark.parametrize("dtype", DTYPES)
def test_shards_of_the_columns_add_up_in_a_balanced_tree(
    product_tier: str, dtype: torch.dtype, kernels: ModuleType
) -> None:
    """So whoever holds some of them gets the bits of the whole; whatever the batch and the threads."""
    weight, x = rand(40, 512, dtype=dtype), rand(70, 512, dtype=dtype, seed=1)
    matrix = packed(weight)
    for shards in (2, 4, 8):
        size = 512 // shards
        sums = [logits(mine, packed(part)) for mine, part in zip(x.split(size, 1), weight.split(size, 1), strict=True)]
        while len(sums) > 1:
            sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
        want = sums[0].to(dtype)
        assert_close(OPS["linear"].reference(x, weight, shards=shards), want, dtype)
        for threads, tokens in ((1, 70), (3, 70), (1, 1), (2, 3), (1, 16), (2, 33)):
            kernels.set_num_threads(threads)
            assert torch.equal(linear(x[-tokens:], matrix, shards=shards), want[-tokens:])
    assert not torch.equal(linear(x, matrix), linear(x, matrix, shards=8))


def test_long_products_keep_their_bits_where_columns_come_first(kernels: ModuleType) -> None:
    """AMX: blocks of columns of 256 tokens, for K of 8192 and more and 128 tokens and more."""
    weight, x = rand(40, 8224, dtype=torch.bfloat16), rand(130, 8224, dtype=torch.bfloat16, seed=1)
    kernels.select_tier("amx_software")
    matrix = packed(weight)
    assert torch.equal(linear(x, matrix)[:3], linear(x[:3], matrix))


def test_bits_do_not_depend_on_the_other_rows_of_the_weight(product_tier: str) -> None:
    weight, x = rand(300, 200, dtype=torch.bfloat16), rand(9, 200, dtype=torch.bfloat16, seed=1)
    whole = linear(x, packed(weight))
    for begin, end in ((0, 1), (0, 33), (64, 300), (130, 200)):
        assert torch.equal(linear(x, packed(weight[begin:end])), whole[:, begin:end])


def test_comparing_bits_would_notice_another_order_of_sums() -> None:
    """The negative control: the columns in another order add up to other bits."""
    weight, x = rand(64, 576), rand(4, 576, seed=1)
    order = torch.randperm(576, generator=torch.Generator().manual_seed(2))
    assert not torch.equal(logits(x, packed(weight)), logits(x[:, order], packed(weight[:, order])))


def test_reads_and_writes_strided_tensors(product_tier: str) -> None:
    weight, wide = rand(50, 40, dtype=torch.bfloat16), rand(6, 100, dtype=torch.bfloat16, seed=1)
    x, out = wide[:, 30:70], torch.full((6, 90), 7.0, dtype=torch.bfloat16)
    want = linear(x.contiguous(), packed(weight))
    assert linear(x, packed(weight), out=out[:, 20:70]).data_ptr() == out[:, 20:].data_ptr()
    assert torch.equal(out[:, 20:70], want)
    assert (out[:, :20] == 7).all() and (out[:, 70:] == 7).all()
    assert linear(x[:0], packed(weight)).shape == (0, 50)


def test_values_that_are_not_finite_stay_in_their_row_and_column(product_tier: str) -> None:
    for dtype in DTYPES:
        weight, x = rand(40, 33, dtype=dtype), rand(7, 33, dtype=dtype, seed=1)
        want = linear(x, packed(weight))
        x[3, 32], weight[5, 32] = float("nan"), float("inf")
        got = linear(x, packed(weight))
        assert got[3].isnan().all() and not got[:3, 5].isfinite().any()
        others = torch.arange(40) != 5
        assert torch.equal(got[:3, others], want[:3, others])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (33, 7), (100, 64), (96, 129)])
def test_packed_values_come_back(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = rand(*shape, dtype=dtype)
    matrix = packed(weight)
    assert torch.equal(matrix.unpack(), weight)
    ids = torch.randint(0, shape[0], (50,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(embedding(ids, matrix), weight[ids])
    out = torch.full((50, shape[1] + 3), 7.0, dtype=dtype)
    embedding(ids, matrix, out[:, 1:-2])
    assert torch.equal(out[:, 1:-2], weight[ids]) and (out[:, -2:] == 7).all()


def test_parts_are_written_in_any_order_and_again(kernels: ModuleType) -> None:
    kernels.set_num_threads(2)
    weight, sizes = rand(45 + 3 + 130, 51, dtype=torch.bfloat16), [45, 3, 130]
    matrix = empty_weight(sum(sizes), 51, torch.bfloat16, CPU)
    ends = list(accumulate(sizes))
    parts = [matrix[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    assert [part.shape for part in parts] == [(size, 51) for size in sizes]
    for _ in range(2):
        for i in (2, 0, 1):
            before = matrix.unpack()
            parts[i].copy_(weight.split(sizes)[i].float())
            assert torch.equal(parts[i].unpack(), weight.split(sizes)[i])
            for j in {0, 1, 2} - {i}:
                assert torch.equal(parts[j].unpack(), before.split(sizes)[j])
        assert torch.equal(matrix.unpack(), weight)
        weight = rand(*weight.shape, dtype=torch.bfloat16, seed=1)
    parts[0].copy_(weight.t()[:, :45].t())
    with pytest.raises(ValueError, match=r"cannot copy \[3, 52\] into a weight of \[3, 51\]"):
        parts[1].copy_(rand(3, 52))


def test_what_the_kernels_do_not_cover_runs_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x, ids = rand(20, 12), rand(3, 12, seed=1), torch.tensor([3, 1])
    matrix = packed(weight)
    for other in (weight, matrix):
        assert torch.equal(linear(x.t().contiguous().t(), other), OPS["linear"].reference(x, weight))
        assert torch.equal(OPS["logits"].reference(x, other), OPS["logits"].reference(x, weight))
        assert torch.equal(OPS["embedding"].reference(ids, other), weight[ids])
    part = matrix[5:20]
    assert torch.equal(linear(x, part), OPS["linear"].reference(x, weight[5:]))
    for dtype, device in ((torch.float64, "cpu"), (torch.bfloat16, "meta")):
        assert isinstance(empty_weight(4, 5, dtype, torch.device(device)), Tensor)
    monkeypatch.setattr(native_linear, "_native", None)
    assert isinstance(empty_weight(4, 5, torch.float32, CPU), Tensor)


def test_tiers_that_multiply_in_float32_agree_to_its_rounding(kernels: ModuleType) -> None:
    weight, x, results = rand(96, 576, dtype=torch.bfloat16), rand(8, 576, dtype=torch.bfloat16, seed=1), []
    for tier in PRODUCT_TIERS:
        kernels.select_tier(tier)
        results.append(logits(x, packed(weight)))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-5, atol=1e-4)


def test_weights_are_held_once() -> None:
    code = """
import torch
from octavo.layers.build import Build
from octavo.layers.linear import Linear
from octavo.ops.dispatch import use_providers
from octavo.quantization.registry import format_of

def anonymous_bytes():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("RssAnon"))

use_providers(("cpu", "torch"))
torch.set_num_threads(1)
layers, build = [], Build(torch.bfloat16, torch.device("cpu"), 64, format_of)
source = torch.ones(3072, 1024, dtype=torch.bfloat16)
before = anonymous_bytes()
for _ in range(16):
    layers.append(Linear(1024, {"gate": 3072, "up": 72}))
    layers[-1].create("mlp.gate_up", build)
    for slot in layers[-1].slots("mlp.gate_up"):
        slot.slot.write(source[: slot.slot.shape[0]])
needed = len(layers) * (3072 + 72) * 1024 * 2
print((anonymous_bytes() - before) / needed)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert 0.9 < float(done.stdout) < 1.2


def test_amx_kernel_sums_in_the_order_of_the_hardware(kernels: ModuleType) -> None:
    """Per 32 columns: chains over the even and the odd ones, rounded at every step, then both; subnormals are zero."""
    weight, x = rand(40, 100, dtype=torch.bfloat16), rand(5, 100, dtype=torch.bfloat16, seed=1)
    tiny = torch.tensor([2.0**-127, 2.0**-64], dtype=torch.bfloat16)
    weight[3], weight[4], x[2] = tiny[0], tiny[1], tiny[1]
    w, y = (torch.nn.functional.pad(t, (0, 28)).double() for t in (weight, x))
    want = torch.zeros(5, 40)
    for tile in range(0, 128, 32):
        even, odd = torch.zeros(5, 40), torch.zeros(5, 40)
        for k in range(tile, tile + 32, 2):
            even = flushed(flushed(y[:, k, None]) * flushed(w[:, k]) + even)
            odd = flushed(flushed(y[:, k + 1, None]) * flushed(w[:, k + 1]) + odd)
        want = flushed(want.double() + flushed(even.double() + odd))
    for tier in {"amx_software", *TIERS} & {"amx", "amx_software"}:
        kernels.select_tier(tier)
        assert torch.equal(logits(x, packed(weight)), want)
    assert (want[:, 3] == 0).all() and (want[2, 4] == 0).all()


def flushed(x: Tensor) -> Tensor:
    """Rounded to float32; subnormal numbers become zero."""
    rounded = x.float()
    return torch.where(rounded.abs() < torch.finfo(torch.float32).tiny, 0.0, rounded)
