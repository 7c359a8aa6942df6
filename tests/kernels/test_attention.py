"""Paged attention, in every tier: against the torch reference, and bit for bit against itself in other company."""

import os
import random
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.kernels.cpu import native
from octavo.kernels.cpu.attention import paged_attention
from octavo.ops.paged_attention import paged_attention as op
from tests.kernels.conftest import DTYPES, TIERS, TOLERANCE
from tests.kernels.worlds import World

MIXED = [(0, 0, 300), (1, 16, 17), (2, 250, 300), (3, 0, 1), (4, 255, 256), (5, 200, 257)]
"""Whole prompts, chunks and single tokens, with contexts that end before, at and after a multiple of 256."""

Span = tuple[int, int, int]


def mixed_world(heads: int = 6, kv_heads: int = 2, head_dim: int = 64, **options: Any) -> World:
    return World([300, 17, 300, 1, 256, 257], heads, kv_heads, head_dim, **options)


def attend(world: World, spans: Sequence[Span], *args: Any, **options: Any) -> list[Tensor]:
    """The kernel's result per span."""
    q, batch = world.batch(list(spans))
    out = paged_attention(q, world.pages, batch, world.head_dim**-0.5, *args, **options)
    return list(out.split([end - begin for _, begin, end in spans]))


def assert_agrees(world: World, *args: Any, **options: Any) -> None:
    """Every tier against the reference."""
    q, batch = world.batch(MIXED, padding=3)
    scale, tolerance = world.head_dim**-0.5, TOLERANCE[world.dtype]
    want = op.reference(q, world.pages, batch, scale, *args, **options)
    for tier in TIERS:
        native.load().select_tier(tier)
        got = paged_attention(q, world.pages, batch, scale, *args, **options)
        torch.testing.assert_close(
            got, want, rtol=tolerance, atol=tolerance, msg=lambda text, tier=tier: f"{tier}: {text}"
        )
        assert not got[-3:].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [2, 8, 32, 34, 40, 64, 78, 80, 128, 250, 256])
def test_agrees_with_the_reference(head_dim: int, dtype: torch.dtype) -> None:
    assert_agrees(mixed_world(4, 2, head_dim, dtype=dtype, kv_dtype=dtype))


@pytest.mark.parametrize(("dtype", "kv_dtype"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_pages_may_be_of_another_type(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    assert_agrees(mixed_world(dtype=dtype, kv_dtype=kv_dtype))


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (9, 3), (14, 2), (50, 1)])
def test_groups_of_any_size_agree(heads: int, kv_heads: int) -> None:
    assert_agrees(mixed_world(heads, kv_heads, 16))


@pytest.mark.parametrize("block_size", [1, 5, 16, 256, 512])
def test_blocks_of_any_size_agree(block_size: int) -> None:
    assert_agrees(mixed_world(head_dim=16, block_size=block_size))


SINKS = torch.tensor([3.0, -2.0, 0.0, 1.0, 40.0, -40.0])


@pytest.mark.parametrize(
    ("window", "softcap", "sinks"),
    [(1, None, None), (3, None, None), (100, 5.0, None), (256, None, SINKS), (1000, 5.0, SINKS), (None, None, SINKS)],
)
def test_window_softcap_and_sinks_agree(window: int | None, softcap: float | None, sinks: Tensor | None) -> None:
    assert_agrees(mixed_world(head_dim=32), window, softcap, sinks)


@pytest.mark.parametrize("dtype", DTYPES)
def test_biases_that_grow_with_distance_agree(dtype: torch.dtype) -> None:
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0, 0.03, 0.01])
    assert_agrees(mixed_world(dtype=dtype, kv_dtype=dtype), alibi_slopes=slopes)
    assert_agrees(mixed_world(dtype=dtype, kv_dtype=dtype), 100, 5.0, SINKS, alibi_slopes=slopes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "head_dim", "value_dim"), [(5, 576, 512), (50, 40, 34), (2, 72, 64)])
def test_values_may_be_the_beginning_of_the_keys(heads: int, head_dim: int, value_dim: int, dtype: torch.dtype) -> None:
    world = mixed_world(heads, 1, head_dim, dtype=dtype, kv_dtype=dtype)
    world.queries = [q * (64 / head_dim) for q in world.queries]
    assert_agrees(world, value_dim=value_dim)  # pages of values of their own, with room behind each
    world.pages = world.pages[:1]
    assert_agrees(world, value_dim=value_dim)


def test_reads_and_writes_strided_tensors_and_skips_blocks_that_the_window_has_passed(tier: str) -> None:
    world = World([500], 4, 2, 32)
    q, batch = world.batch([(0, 490, 500)])
    want = op.reference(q, world.pages, batch, 0.2, 40)
    batch.block_table[0, :28] = -1
    fused = torch.cat([q, q, q], 1)
    out = torch.full_like(fused, 7.0)
    assert paged_attention(fused[:, 4:8], world.pages, batch, 0.2, 40, out=out[:, :4]).data_ptr() == out.data_ptr()
    torch.testing.assert_close(out[:, :4], want, rtol=2e-5, atol=2e-5)
    assert (out[:, 4:] == 7).all()


def test_what_the_kernel_does_not_cover_runs_the_reference() -> None:
    for world in (World([20], 2, 1, 13), World([20], 2, 1, 16, dtype=torch.float64)):
        q, batch = world.batch([(0, 5, 20)])
        want = op.reference(q, world.pages, batch, 0.3)
        assert torch.equal(paged_attention(q, world.pages, batch, 0.3), want)
    world = World([20], 2, 1, 16)
    q, batch = world.batch([(0, 5, 20)])
    pages = torch.stack([world.pages, world.pages], -1)[..., 0]
    assert torch.equal(paged_attention(q, pages, batch, 0.3), op.reference(q, world.pages, batch, 0.3))
    assert paged_attention(q.to("meta"), pages.to("meta"), batch, 0.3).is_meta


LENGTHS = [780, 540, 17, 256, 511, 1]
OPTIONS = [(None, None, None), (300, None, None), (None, 20.0, torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5, 0.0]))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("args", OPTIONS, ids=["full", "window", "softcap+sinks"])
def test_bits_do_not_depend_on_chunks_batch_or_threads(
    tier: str, args: tuple[Any, ...], dtype: torch.dtype, kernels: ModuleType
) -> None:
    world = World(LENGTHS, 6, 2, 64, dtype=dtype, kv_dtype=dtype)
    kernels.set_num_threads(1)
    whole = [attend(world, [(request, 0, length)], *args)[0] for request, length in enumerate(LENGTHS)]
    for count in (1, 2, 3):
        kernels.set_num_threads(count)
        together = attend(world, [(request, 0, length) for request, length in enumerate(LENGTHS)], *args)
        assert all(map(torch.equal, together, whole))
        last = [(request, length - 1, length) for request, length in enumerate(LENGTHS)]
        for spans in (last, last[:1], [(1, 400, 401), (0, 512, 540), last[3], (0, 0, 5)]):
            for (request, begin, end), got in zip(spans, attend(world, spans, *args), strict=True):
                assert torch.equal(got, whole[request][begin:end])
        chunks = [attend(world, [(0, begin, min(begin + 67, 780))], *args)[0] for begin in range(0, 780, 67)]
        assert torch.equal(torch.cat(chunks), whole[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_who_shares_pages(tier: str, dtype: torch.dtype, kernels: ModuleType) -> None:
    lengths = [1100, *range(520, 1100, 29), 512, 513, 200, 1030]
    world = World(lengths, 6, 2, 32, dtype=dtype, kv_dtype=dtype, common=512)
    for request in (3, 4, 5, 8):  # some have more in common
        world.tables[request][:48] = world.tables[0][:48]
    last = [(request, length - 1, length) for request, length in enumerate(world.lengths)]
    sinks = torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5, 0.0])
    kernels.set_num_threads(1)
    alone = [attend(world, [span], None, None, sinks)[0] for span in last]
    for threads in (1, 2, 4):
        kernels.set_num_threads(threads)
        for spans in (last, last[::-1], last[:2], last[1::2], [*last[4:9], (0, 700, 760), *last[:3]], last + last):
            for (request, begin, end), got in zip(spans, attend(world, spans, None, None, sinks), strict=True):
                assert end - begin > 1 or torch.equal(got, alone[request])


def test_bits_do_not_depend_on_block_size_or_where_blocks_lie(tier: str) -> None:
    outs = []
    for block_size in (16, 5):
        world = World([600], 2, 1, 32, block_size=block_size)
        table = torch.tensor(world.tables[0])
        values = torch.randn(2, 600, 1, 32, generator=torch.Generator().manual_seed(1))
        for position in range(600):
            page, offset = table[position // block_size], position % block_size
            world.pages[:, page, :, offset] = values[:, position]
        world.queries = [values[0].expand(-1, 2, -1)]
        outs.append(attend(world, [(0, 590, 600)])[0])
    assert torch.equal(*outs)


def test_comparing_bits_would_notice_another_order_of_sums(kernels: ModuleType) -> None:
    """The negative control: two tiers add the same numbers in different orders, and differ."""
    world, results = World([300], 2, 1, 64), []
    for tier in TIERS:
        kernels.select_tier(tier)
        results.append(attend(world, [(0, 0, 300)])[0])
    assert len(results) == 1 or not torch.equal(results[0], results[-1])


@pytest.mark.slow
def test_bits_survive_random_schedules(kernels: ModuleType) -> None:
    """Random requests, cut and batched at random, on random tiers and thread counts; `--minutes` sets how long."""
    deadline = time.monotonic() + 60 * float(os.environ.get("OCTAVO_TEST_MINUTES", "0.3"))
    trial = 0
    while time.monotonic() < deadline:
        trial += 1
        rng = random.Random(trial)
        kernels.select_tier(rng.choice(kernels.tiers()))
        check_random_schedule(rng, kernels, trial)
    assert trial > 3


def check_random_schedule(rng: random.Random, kernels: ModuleType, trial: int) -> None:
    kv_heads = rng.choice([1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 3, 7])
    lengths = [rng.choice([1, 40, 255, 256, 257, 900]) for _ in range(rng.randint(1, 4))]
    dtype = rng.choice(DTYPES)
    world = World(lengths, heads, kv_heads, rng.choice([32, 40, 64]), rng.choice([4, 16]), dtype, dtype, trial)
    args = rng.choice([None, 1, 50, 300]), rng.choice([None, 10.0]), rng.choice([None, torch.randn(heads)])
    kernels.set_num_threads(1)
    whole = [attend(world, [(request, 0, length)], *args)[0] for request, length in enumerate(lengths)]
    done = [0] * len(lengths)
    while any(have < length for have, length in zip(done, lengths, strict=True)):
        kernels.set_num_threads(rng.choice([1, 2, 4]))
        open_requests = [request for request, length in enumerate(lengths) if done[request] < length]
        chosen = rng.sample(open_requests, rng.randint(1, len(open_requests)))
        spans = [
            (request, done[request], min(lengths[request], done[request] + rng.choice([1, 3, 64, 400])))
            for request in chosen
        ]
        for (request, begin, end), got in zip(spans, attend(world, spans, *args), strict=True):
            assert torch.equal(got, whole[request][begin:end]), f"trial {trial}, request {request}, {begin}..{end}"
            done[request] = end
