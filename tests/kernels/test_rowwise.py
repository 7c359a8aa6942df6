"""Norms, gated activations, rope and page writes, in every tier, against the torch references."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.kernels.cpu import rowwise
from octavo.ops.dispatch import OPS
from tests.kernels.conftest import DTYPES, TOLERANCE

SIZES = [1, 7, 16, 63, 100, 576, 1031]
"""Row lengths below, at and around every tier's vector and unrolled loop."""


def rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return (2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def assert_close(got: Tensor, want: Tensor) -> None:
    tolerance = TOLERANCE[want.dtype]
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_rms_norm_of_any_length_agrees_with_the_reference(tier: str, size: int, dtype: torch.dtype) -> None:
    x, weight = rand(5, size, dtype=dtype), rand(size, seed=1)
    assert_close(rowwise.rms_norm(x, weight, 1e-5), OPS["rms_norm"].reference(x, weight, 1e-5))
    weight = weight.to(dtype)
    assert_close(rowwise.rms_norm(x, weight, 1e-5), OPS["rms_norm"].reference(x, weight, 1e-5))


def test_rms_norm_reads_and_writes_the_heads_of_a_fused_projection(tier: str) -> None:
    fused, weight = rand(4, 9, 24), rand(24, seed=1)
    want = fused.clone()
    want[:, 2:5] = OPS["rms_norm"].reference(fused[:, 2:5], weight, 1e-5)
    heads = fused[:, 2:5]
    assert rowwise.rms_norm(heads, weight, 1e-5, out=heads) is heads
    assert_close(fused, want)
    gathered = torch.empty(4, 3, 24)
    rowwise.rms_norm(heads, weight, 1e-5, out=gathered)
    assert_close(gathered, OPS["rms_norm"].reference(heads, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_add_rms_norm_norms_the_rounded_residual(tier: str, size: int, dtype: torch.dtype) -> None:
    x, residual, weight = rand(5, size, dtype=dtype), rand(5, size, dtype=dtype, seed=1), rand(size, seed=2)
    want_residual = residual.clone()
    want = OPS["add_rms_norm"].reference(x, want_residual, weight, 1e-6)
    got = rowwise.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, want_residual)
    assert_close(got, want)
    zero = torch.zeros_like(x)
    assert torch.equal(rowwise.add_rms_norm(zero, residual, weight, 1e-6, out=zero), got)
    assert torch.equal(zero, got)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 13, 64, 1536])
@pytest.mark.parametrize("name", ["silu_mul", "gelu_tanh_mul", "gelu_mul"])
def test_gated_activation_agrees_with_the_reference(tier: str, name: str, size: int, dtype: torch.dtype) -> None:
    x = rand(3, 2 * size, dtype=dtype)
    assert_close(getattr(rowwise, name)(x), OPS[name].reference(x))


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("silu_mul", F.silu),
        ("gelu_tanh_mul", lambda x: F.gelu(x, approximate="tanh")),
        ("gelu_mul", F.gelu),
    ],
)
def test_activation_is_right_over_the_whole_line(tier: str, name: str, exact: Callable[[Tensor], Tensor]) -> None:
    gate = torch.cat([torch.linspace(-120, 120, 4001), torch.linspace(-6, 6, 4001), torch.tensor([0.0, -1e-30, 3e38])])
    got = getattr(rowwise, name)(torch.cat([gate, torch.ones_like(gate)]).unsqueeze(0))[0]
    torch.testing.assert_close(got.double(), exact(gate.double()), rtol=1e-6, atol=5e-7)
    assert getattr(rowwise, name)(torch.tensor([[float("nan"), 1.0]])).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary"), [(64, 64), (80, 32), (24, 24), (256, 6)])
def test_rope_rotates_strided_heads_to_the_reference_bits(
    tier: str, head_dim: int, rotary: int, interleaved: bool, dtype: torch.dtype
) -> None:
    fused = rand(6, 8, head_dim, dtype=dtype)
    positions, cos_sin = torch.tensor([0, 3, 1, 49, 2, 2]), rand(50, rotary, seed=1)
    want = fused.clone()
    OPS["rope"].reference(want[:, :4], want[:, 4:6], positions, cos_sin, interleaved)
    rowwise.rope(fused[:, :4], fused[:, 4:6], positions, cos_sin, interleaved)
    assert torch.equal(fused, want)


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_write_kv_rounds_into_the_slots_and_leaves_the_rest(
    tier: str, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    fused = 100 * rand(7, 6, 40, dtype=dtype)
    pages = torch.full((2, 5, 2, 4, 40), 7.0, dtype=kv_dtype)
    slots = torch.tensor([3, 19, -1, 0, 8, -1, 5])
    want = pages.clone()
    OPS["write_kv"].reference(fused[:, 2:4], fused[:, 4:], want, slots)
    rowwise.write_kv(fused[:, 2:4], fused[:, 4:], pages, slots)
    assert torch.equal(pages, want)
    OPS["write_kv"].reference(fused[:, :2], fused[:, 2:4, :33], want, slots)
    rowwise.write_kv(fused[:, :2], fused[:, 2:4, :33].contiguous(), pages, slots)  # narrow values leave the rest
    assert torch.equal(pages, want)
    OPS["write_kv"].reference(fused[:, 4:], None, want[:1], slots)
    rowwise.write_kv(fused[:, 4:], None, pages[:1], slots)
    assert torch.equal(pages, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_survives_reading_and_writing(tier: str, dtype: torch.dtype) -> None:
    halves = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype).view(-1, 1, 8)
    pages = torch.zeros(2, len(halves), 1, 1, 8)
    rowwise.write_kv(halves, halves, pages, torch.arange(len(halves)))  # widened to float32
    assert torch.equal(pages.nan_to_num(0.5).view(2, -1), halves.float().nan_to_num(0.5).view(-1).expand(2, -1))
    back = torch.zeros(2, len(halves), 1, 1, 8, dtype=dtype)
    rowwise.write_kv(pages[0, :, 0], pages[0, :, 0], back, torch.arange(len(halves)))  # and rounded again
    assert torch.equal(back[1].nan_to_num(0.5).view(-1), halves.nan_to_num(0.5).view(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_to_nearest_with_ties_to_even(tier: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), generator=generator).to(torch.int32)
    ties = (patterns & ~0x1FFF) | 0x1000  # halfway between two float16
    edges = torch.tensor([65519.0, 65520.0, 1e-8, 6e-8, 2.98e-8, 3.4e38, float("inf")])
    x = torch.cat([patterns.view(torch.float32), ties.view(torch.float32), edges.repeat(8)]).view(-1, 1, 8)
    pages = torch.zeros(2, len(x), 1, 1, 8, dtype=dtype)
    rowwise.write_kv(x, x, pages, torch.arange(len(x)))
    assert torch.equal(pages[0].nan_to_num(0.5).view(-1), x.to(dtype).nan_to_num(0.5).view(-1))


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "rms_norm": lambda x: rowwise.rms_norm(x, x.new_ones(x.shape[1]), 1e-5),
    "add_rms_norm": lambda x: rowwise.add_rms_norm(x, x * 3, x.new_ones(x.shape[1]), 1e-5),
    "silu_mul": rowwise.silu_mul,
    "gelu_tanh_mul": rowwise.gelu_tanh_mul,
    "gelu_mul": rowwise.gelu_mul,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_thread(tier: str, name: str, kernels: ModuleType) -> None:
    call, x = CALLS[name], rand(400, 1030)
    kernels.set_num_threads(1)
    alone = torch.cat([call(x[i : i + 1]) for i in range(0, 400, 40)])
    for count in (1, 2, 5):
        kernels.set_num_threads(count)
        assert torch.equal(call(x)[::40], alone)


@pytest.mark.parametrize("name", CALLS)
def test_what_the_kernel_does_not_cover_runs_the_reference(name: str) -> None:
    for x in (rand(12, 6, dtype=torch.float64), rand(6, 12).t(), rand(12, 6).to("meta")):
        got = CALLS[name](x)
        want = x if x.is_meta else CALLS[name](x.float().contiguous())
        assert got.device == want.device and got.dtype == x.dtype
        if not x.is_meta:
            torch.testing.assert_close(got.float(), want, rtol=1e-5, atol=1e-6)


def test_empty_batches_are_fine() -> None:
    assert rowwise.silu_mul(torch.zeros(0, 8)).shape == (0, 4)
    assert rowwise.rms_norm(torch.zeros(0, 8), torch.ones(8), 1e-5).shape == (0, 8)
