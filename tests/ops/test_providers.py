"""Every provider's version of every op against the torch reference: results, out-form, mutation, strides, shapes.

A provider registered in `IMPLS` is picked up by itself. One that this machine cannot run shows as an expected failure.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.attention.batch import AttentionBatch
from octavo.kernels.cpu import native
from octavo.ops.dispatch import IMPLS, OPS
from tests.kernels.worlds import in_a_pool

OP_NAMES = (
    "linear",
    "embedding",
    "logits",
    "rms_norm",
    "add_rms_norm",
    "layer_norm",
    "rope",
    "write_kv",
    "paged_attention",
    "silu_mul",
    "gelu_tanh_mul",
    "gelu_mul",
    "scale",
)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
"""Relative and absolute: both sides round a float32 result once, but may sum in another order."""

RUNS_HERE: dict[str, Callable[[], bool]] = {
    "torch": lambda: True,
    "cpu": lambda: native.load() is not None,
    "cuda": torch.cuda.is_available,
}

Case = dict[str, Any]


class Make:
    """Random tensors of one dtype; `strided` ones are slices of something wider, as parts of a fused projection are."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(dtype or self.dtype)

    def strided(self, *shape: int) -> Tensor:
        wide = self(shape[0], shape[1] + 3, *shape[2:])
        return wide[:, 1 : 1 + shape[1]]

    def ints(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator)


def linear_cases(make: Make) -> list[Case]:
    shapes = [(1, 32, 8), (3, 64, 48), (17, 576, 192), (33, 80, 130), (130, 96, 40)]
    cases = [{"x": make(t, k), "weight": make(n, k) / k**0.5, "bias": None} for t, k, n in shapes]
    return [*cases, *({**case, "bias": make(len(case["weight"]))} for case in cases[1:3])]


def embedding_cases(make: Make) -> list[Case]:
    return [{"ids": make.ints(0, 50, t), "weight": make(50, k)} for t, k in ((1, 16), (7, 33), (40, 64))]


def logits_cases(make: Make) -> list[Case]:
    shapes = [(1, 64, 96), (5, 48, 4099), (2, 576, 777)]
    return [{"x": make(s, k), "weight": make(v, k) / k**0.5} for s, k, v in shapes]


def norm_cases(make: Make) -> list[Case]:
    wide = torch.float32
    return [
        {"x": make(1, 64), "weight": make(64, dtype=wide), "eps": 1e-6},
        {"x": make(9, 576), "weight": make(576), "eps": 1e-5},
        {"x": make(5, 75), "weight": make(75, dtype=wide), "eps": 1e-2},
    ]


def rms_norm_cases(make: Make) -> list[Case]:
    heads = {"x": make.strided(6, 3, 24), "weight": make(24, dtype=torch.float32), "eps": 1e-6}
    return [*norm_cases(make), heads, {"x": make.strided(4, 40), "weight": make(40), "eps": 1e-6}]


def add_rms_norm_cases(make: Make) -> list[Case]:
    return [{**case, "residual": make(*case["x"].shape)} for case in norm_cases(make)]


def layer_norm_cases(make: Make) -> list[Case]:
    cases = norm_cases(make)
    return [{**cases[0], "bias": None}, *({**case, "bias": make(*case["weight"].shape)} for case in cases)]


def gate_cases(make: Make) -> list[Case]:
    return [{"x": make(t, 2 * n) * 3} for t, n in ((1, 8), (5, 75), (16, 1536))]


def scale_cases(make: Make) -> list[Case]:
    return [{"x": x, "factor": 0.41} for x in (make(1, 8), make(5, 75), make.strided(16, 1536))]


def rope_cases(make: Make) -> list[Case]:
    def case(t: int, heads: int, groups: int, dim: int, rotary: int, interleaved: bool) -> Case:
        angles = make(90, rotary // 2, dtype=torch.float32) * 3
        return {
            "q": make.strided(t, heads, dim),
            "k": make.strided(t, groups, dim),
            "positions": make.ints(0, 90, t),
            "cos_sin": torch.cat((angles.cos(), angles.sin()), 1),
            "interleaved": interleaved,
        }

    sizes = [(1, 4, 4, 64, 64), (7, 9, 3, 64, 64), (5, 4, 1, 80, 80), (6, 2, 2, 96, 48)]
    return [case(*size, interleaved) for size in sizes for interleaved in (False, True)]


def write_kv_cases(make: Make) -> list[Case]:
    def case(t: int, groups: int, dim: int, block: int, page_dtype: torch.dtype) -> Case:
        slots = torch.randperm(8 * block, generator=make.generator)[:t]
        slots[1::3] = -1
        k, v = make.strided(t, groups, dim), make.strided(t, groups, dim)
        pages = in_a_pool(make(2, 8, groups, block, dim, dtype=page_dtype))
        return {"k": k, "v": v, "pages": pages, "slot_mapping": slots}

    return [case(1, 1, 16, 16, make.dtype), case(9, 3, 64, 16, make.dtype), case(20, 2, 24, 5, torch.float32)]


def attention_case(
    make: Make,
    rows: list[tuple[int, int]],
    heads: int = 4,
    groups: int = 2,
    dim: int = 32,
    block: int = 16,
    padding: int = 0,
    **options: Any,
) -> Case:
    """`rows`: (tokens in this step, tokens after it). Pages that belong to nobody, and unwritten slots, hold NaN."""
    used = [-(-end // block) for _, end in rows]
    num_blocks = sum(used) + 2
    order = torch.randperm(num_blocks, generator=make.generator).tolist()
    pages = in_a_pool(make(2, num_blocks, groups, block, dim))
    table = torch.full((len(rows), max(used) + 1), -1, dtype=torch.int32)
    for row, (_, end) in enumerate(rows):
        for column in range(used[row]):
            table[row, column] = order.pop()
        pages[:, table[row, used[row] - 1], :, end - (used[row] - 1) * block :] = float("nan")
    pages[:, order] = float("nan")
    starts = torch.tensor([0, *(count for count, _ in rows)]).cumsum(0).to(torch.int32)
    batch = AttentionBatch(
        query_start=starts,
        seq_lens=torch.tensor([end for _, end in rows], dtype=torch.int32),
        block_table=table,
        slot_mapping=torch.empty(0, dtype=torch.int64),
        max_query_len=max(count for count, _ in rows),
        max_seq_len=max(end for _, end in rows),
    )
    q = make.strided(int(starts[-1]) + padding, heads, dim)
    return {"q": q, "pages": pages, "batch": batch, "scale": dim**-0.5, "window": None, "softcap": None, **options}


def attention_cases(make: Make) -> list[Case]:
    mixed = [(1, 1), (5, 5), (1, 300), (40, 290), (1, 17), (3, 600)]
    return [
        attention_case(make, [(1, 1)]),
        attention_case(make, mixed),
        attention_case(make, mixed, heads=6, groups=2, dim=24, block=5, padding=3),
        attention_case(make, mixed, window=20),
        attention_case(make, mixed, window=270, block=256),
        attention_case(make, mixed, softcap=1.5, heads=3, groups=3, dim=80),
        attention_case(make, mixed, window=64, softcap=4.0, sinks=make(4, dtype=torch.float32)),
        attention_case(make, [(1, 3 * n + 1) for n in range(40)], heads=9, groups=3, dim=64),
    ]


CASES: dict[str, Callable[[Make], list[Case]]] = {
    "linear": linear_cases,
    "embedding": embedding_cases,
    "logits": logits_cases,
    "rms_norm": rms_norm_cases,
    "add_rms_norm": add_rms_norm_cases,
    "layer_norm": layer_norm_cases,
    "rope": rope_cases,
    "write_kv": write_kv_cases,
    "paged_attention": attention_cases,
    "silu_mul": gate_cases,
    "gelu_tanh_mul": gate_cases,
    "gelu_mul": gate_cases,
    "scale": scale_cases,
}
MUTATES = {"add_rms_norm": ("residual",), "rope": ("q", "k"), "write_kv": ("pages",), "scale": ("x",)}
IN_PLACE = ("rope", "write_kv", "scale")

for _name in OP_NAMES:
    import_module(f"octavo.ops.{_name}")
PROVIDED = [name for name in IMPLS if name.partition("/")[2] in OP_NAMES] + [f"torch/{name}" for name in OP_NAMES]


def load(provided: str) -> Callable[..., Any]:
    """The provider's version; an expected failure where this machine cannot run it."""
    provider, _, name = provided.partition("/")
    if not RUNS_HERE[provider]():
        pytest.xfail(f"provider {provider!r} is not available on this machine")
    return OPS[name].reference if provider == "torch" else IMPLS.load(provided)


def copy_of(case: Case) -> Case:
    """A case to mutate; strided tensors stay strided."""
    return {key: clone(value) if isinstance(value, Tensor) else value for key, value in case.items()}


def clone(x: Tensor) -> Tensor:
    size = 1 + sum((count - 1) * stride for count, stride in zip(x.shape, x.stride(), strict=True))
    return torch.empty(size, dtype=x.dtype).as_strided(x.shape, x.stride()).copy_(x)


def assert_same(actual: Any, expected: Any, dtype: torch.dtype, what: str) -> None:
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("provided", PROVIDED)
def test_provider_agrees_with_the_reference(provided: str, dtype: torch.dtype) -> None:
    impl, name = load(provided), provided.partition("/")[2]
    for number, case in enumerate(CASES[name](Make(dtype))):
        expected_args, actual_args = copy_of(case), copy_of(case)
        expected, actual = OPS[name].reference(**expected_args), impl(**actual_args)
        assert_same(actual, expected, dtype, f"case {number}, result")
        for key, value in case.items():
            if not isinstance(value, Tensor):
                continue
            if key in MUTATES.get(name, ()):
                assert_same(actual_args[key], expected_args[key], dtype, f"case {number}, {key}")
            else:
                torch.testing.assert_close(actual_args[key], value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("provided", [name for name in PROVIDED if name.partition("/")[2] not in IN_PLACE])
def test_out_form_fills_and_returns_out_with_the_same_bits(provided: str) -> None:
    impl, name = load(provided), provided.partition("/")[2]
    for case in CASES[name](Make(torch.float32)):
        expected = impl(**copy_of(case))
        out = torch.full_like(expected, float("nan"), memory_format=torch.contiguous_format)
        assert impl(**copy_of(case), out=out) is out
        assert torch.equal(out, expected)


@pytest.mark.parametrize("name", OP_NAMES)
def test_meta_kernel_and_reference_agree_on_shape_and_type(name: str) -> None:
    for case in CASES[name](Make(torch.bfloat16)):
        expected = OPS[name].reference(**copy_of(case))
        meta = {key: value.to("meta") if isinstance(value, Tensor) else value for key, value in case.items()}
        for kernel in (OPS[name].reference, OPS[name].meta):
            actual = kernel(**meta)
            if expected is None:
                assert actual is None
            else:
                assert (actual.shape, actual.dtype, actual.device.type) == (expected.shape, expected.dtype, "meta")


def test_every_registered_kernel_is_of_a_known_op_and_provider() -> None:
    for registered in IMPLS:
        provider, _, name = registered.partition("/")
        assert provider in RUNS_HERE
        assert name in OP_NAMES or import_module(f"octavo.ops.{name}")
