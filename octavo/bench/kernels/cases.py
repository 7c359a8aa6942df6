"""What is compared: for each op the shapes, our call, torch's call for the same result, and the work it stands for.

A case is made when it is asked for and dropped before the next one: operands that are to be cold take many copies.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.attention.batch import AttentionBatch
from octavo.bench.kernels.measure import Call
from octavo.config import KVGroupSpec
from octavo.errors import ConfigError
from octavo.ops.add_rms_norm import add_rms_norm
from octavo.ops.empty_pages import empty_pages
from octavo.ops.empty_weight import empty_weight
from octavo.ops.gelu_tanh_mul import gelu_tanh_mul
from octavo.ops.linear import linear
from octavo.ops.logits import logits
from octavo.ops.paged_attention import paged_attention
from octavo.ops.rms_norm import rms_norm
from octavo.ops.rope import rope
from octavo.ops.silu_mul import silu_mul
from octavo.platforms import host

COLD_BYTES = max(2 * host.last_level_cache_bytes(), 128 << 20)
"""Operands that are to come from memory are copied until they take this much, and used in turn."""

BLOCK_SIZE = 16
EPS = 1e-5

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        m: rows: tokens, or for decoding requests of one token each.
        memory: "cold" when weights or keys and values come from memory, "warm" when from the caches if they fit.
        num_bytes, flops: what a call has to read (weights, keys and values, or rows) and to compute.
    """

    op: str
    dtype: str
    shape: tuple[int, ...]
    m: int
    memory: str
    ours: Call
    theirs: Call
    num_bytes: int
    flops: int


@dataclass(frozen=True)
class Selection:
    """What the user narrowed the table to; empty means the defaults of each op."""

    ops: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    ms: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    memory: tuple[str, ...] = ()


class Subject(NamedTuple):
    """An op to be compared: its defaults (shapes, numbers of rows, where operands are), and how its cases are made."""

    axes: str
    shapes: tuple[tuple[int, ...], ...]
    ms: tuple[int, ...]
    memory: tuple[str, ...]
    make: "Callable[[tuple[int, ...], int, torch.dtype, bool], Work]"


class Work(NamedTuple):
    """What `Subject.make` gives: both calls, and the bytes and operations of one."""

    ours: Call
    theirs: Call
    num_bytes: int
    flops: int


def select_cases(selection: Selection) -> Iterator[Case]:
    """The cases, one after the other.

    Raises:
        ConfigError: nothing is left: no op takes a shape with that many numbers.
    """
    chosen = [(name, SUBJECTS[name]) for name in selection.ops or SUBJECTS]
    found = False
    for (name, subject), dtype in product(chosen, selection.dtypes):
        fitting = tuple(shape for shape in selection.shapes if len(shape) == len(subject.axes.split("x")))
        for shape in fitting if selection.shapes else subject.shapes:
            for m, memory in product(selection.ms or subject.ms, selection.memory or subject.memory):
                work = subject.make(shape, m, DTYPES[dtype], memory == "cold")
                yield Case(name, dtype, shape, m, memory, *work)
                found = True
    if not found:
        wanted = ", ".join(f"{name} {subject.axes}" for name, subject in chosen)
        raise ConfigError(f"no case has a shape like --shapes; shapes are {wanted}")


def _copies(num_bytes: int, cold: bool) -> int:
    return -(-COLD_BYTES // num_bytes) if cold else 1


def _linear(shape: tuple[int, ...], m: int, dtype: torch.dtype, cold: bool) -> Work:
    return _product(shape, m, dtype, cold, linear, F.linear)


def _logits(shape: tuple[int, ...], m: int, dtype: torch.dtype, cold: bool) -> Work:
    """Ours adds up in float32 and gives float32; torch has no product that widens, so it gets one in its dtype."""
    return _product(shape, m, dtype, cold, logits, lambda x, weight: F.linear(x, weight).float())


def _product(
    shape: tuple[int, ...],
    m: int,
    dtype: torch.dtype,
    cold: bool,
    ours: Callable[..., Tensor],
    theirs: Callable[[Tensor, Tensor], Tensor],
) -> Work:
    """x [m, K] times a weight [N, K]."""
    rows, columns = shape
    dense = torch.randn(rows, columns).to(dtype)
    x = torch.randn(m, columns).to(dtype)
    num_bytes = dense.numel() * dense.element_size()
    copies = _copies(num_bytes, cold)
    plain = [dense.clone() for _ in range(copies)]
    packed = [empty_weight(rows, columns, dtype, dense.device) for _ in range(copies)]
    for weight in packed:
        weight.copy_(dense)
    return Work(
        lambda i: ours(x, packed[i % copies]), lambda i: theirs(x, plain[i % copies]), num_bytes, 2 * m * dense.numel()
    )


def _decode(shape: tuple[int, ...], m: int, dtype: torch.dtype, cold: bool) -> Work:
    """m requests of one token each over `context` tokens; torch gets keys and values without pages."""
    heads, groups, size, context = shape
    q = torch.randn(m, heads, size).to(dtype)
    query, starts = q.unsqueeze(2), torch.arange(m + 1, dtype=torch.int32)
    flops = 4 * m * heads * size * context
    return _attention(q, query, starts, [context] * m, groups, cold, is_causal=False, flops=flops)


def _prefill(shape: tuple[int, ...], m: int, dtype: torch.dtype, cold: bool) -> Work:
    """One request's m tokens, each over those before it and itself."""
    heads, groups, size = shape
    q = torch.randn(m, heads, size).to(dtype)
    query, starts = q.transpose(0, 1).unsqueeze(0), torch.tensor([0, m], dtype=torch.int32)
    return _attention(q, query, starts, [m], groups, cold, is_causal=True, flops=2 * heads * size * m * (m + 1))


def _attention(
    q: Tensor,
    query: Tensor,
    query_start: Tensor,
    seq_lens: list[int],
    groups: int,
    cold: bool,
    *,
    is_causal: bool,
    flops: int,
) -> Work:
    """q [T, H, D] for us and the same as `query` [R, H, n, D] for torch, over random keys and values."""
    rows, context, size = len(seq_lens), max(seq_lens), q.shape[2]
    num_bytes = 2 * rows * groups * context * size * q.element_size()
    copies = _copies(num_bytes, cold)
    per_row = -(-context // BLOCK_SIZE)
    plain = [torch.randn(2, rows, groups, context, size).to(q.dtype) for _ in range(copies)]
    table = torch.randperm(rows * per_row).view(rows, per_row)
    paged = [_in_pages(kv, table) for kv in plain]
    batch = AttentionBatch(
        query_start,
        torch.tensor(seq_lens, dtype=torch.int32),
        table.int(),
        torch.empty(0, dtype=torch.int64),
        len(q) if is_causal else 1,
        context,
    )

    def theirs(i: int) -> Tensor:
        keys, values = plain[i % copies].unbind()
        return F.scaled_dot_product_attention(query, keys, values, is_causal=is_causal, enable_gqa=True)

    return Work(lambda i: paged_attention(q, paged[i % copies], batch, size**-0.5), theirs, num_bytes, flops)


def _in_pages(kv: Tensor, table: Tensor) -> Tensor:
    """kv [2, R, G, context, D] as pages [2, B, G, block, D], page table[r, i] holding the i-th block of row r."""
    padded = F.pad(kv, (0, 0, 0, -kv.shape[3] % BLOCK_SIZE))
    by_block = padded.view(*kv.shape[:3], -1, BLOCK_SIZE, kv.shape[4])
    blocks = by_block.transpose(2, 3).flatten(1, 2)  # [2, B, G, block, D]
    num_blocks, groups, block_size, head_dim = blocks.shape[1:]
    group = KVGroupSpec("full", 1, groups, head_dim)
    pages = empty_pages(group, num_blocks, block_size, kv.dtype, kv.device)[0]
    pages[:, table.flatten()] = blocks
    return pages


def _rms_norm(shape: tuple[int, ...], m: int, dtype: torch.dtype, cold: bool) -> Work:
    weight = torch.rand(shape[0]).to(dtype)
    return _rowwise(
        lambda x: rms_norm(x, weight, EPS), lambda x: F.rms_norm(x, shape, weight, EPS), m, shape[0], dtype, cold
    )


def _add_rms_norm(shape: tuple[int, ...], m: int, dtype: torch.dtype, cold: bool) -> Work:
    weight = torch.rand(shape[0]).to(dtype)
    mine, other = (torch.zeros(m, shape[0], dtype=dtype) for _ in range(2))  # added to in place

    def theirs(x: Tensor) -> Tensor:
        other.add_(x)
        return F.rms_norm(other, shape, weight, EPS)

    return _rowwise(lambda x: add_rms_norm(x, mine, weight, EPS), theirs, m, shape[0], dtype, cold)


def _silu_mul(shape: tuple[int, ...], m: int, dtype: torch.dtype, cold: bool) -> Work:
    return _rowwise(silu_mul, lambda x: _gate(x, F.silu), m, 2 * shape[0], dtype, cold)


def _gelu_tanh_mul(shape: tuple[int, ...], m: int, dtype: torch.dtype, cold: bool) -> Work:
    return _rowwise(
        gelu_tanh_mul, lambda x: _gate(x, lambda y: F.gelu(y, approximate="tanh")), m, 2 * shape[0], dtype, cold
    )


def _gate(x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    gate, up = x.chunk(2, -1)
    return activation(gate) * up


def _rope(shape: tuple[int, ...], m: int, dtype: torch.dtype, cold: bool) -> Work:
    """Queries and keys of m tokens as one row each; torch turns them by whole-tensor products, as Transformers does."""
    heads, groups, size = shape
    positions = torch.arange(m)
    angles = torch.outer(positions.float(), 10000.0 ** (-torch.arange(0, size, 2) / size))
    table = torch.cat((angles.cos(), angles.sin()), -1)
    cos, sin = (half.repeat(1, 2).unsqueeze(1).to(dtype) for half in (angles.cos(), angles.sin()))

    def split(x: Tensor) -> tuple[Tensor, Tensor]:
        by_head = x.view(m, heads + groups, size)
        return by_head[:, :heads], by_head[:, heads:]

    def ours(x: Tensor) -> tuple[Tensor, Tensor]:
        q, k = split(x)
        rope(q, k, positions, table, False)
        return q, k

    def theirs(x: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (y * cos + torch.cat((-y[..., size // 2 :], y[..., : size // 2]), -1) * sin for y in split(x))
        return q, k

    return _rowwise(ours, theirs, m, (heads + groups) * size, dtype, cold)


def _rowwise(
    ours: Callable[[Tensor], object],
    theirs: Callable[[Tensor], object],
    m: int,
    columns: int,
    dtype: torch.dtype,
    cold: bool,
) -> Work:
    """An op on rows x [m, columns] alone; what it computes is not worth counting."""
    x = torch.randn(m, columns).to(dtype)
    num_bytes = x.numel() * x.element_size()
    copies = _copies(num_bytes, cold)
    mine, others = ([x.clone() for _ in range(copies)] for _ in range(2))
    return Work(lambda i: ours(mine[i % copies]), lambda i: theirs(others[i % copies]), num_bytes, 0)


MEMORY = ("cold", "warm")
SUBJECTS: dict[str, Subject] = {
    "linear": Subject("NxK", ((960, 576), (576, 1536), (2048, 2048)), (1, 4, 16, 64, 256), MEMORY, _linear),
    "logits": Subject("VxK", ((49152, 576),), (1, 16), MEMORY, _logits),
    "decode": Subject("HxGxDxC", ((9, 3, 64, 256), (32, 8, 128, 512)), (1, 16), MEMORY, _decode),
    "prefill": Subject("HxGxD", ((9, 3, 64), (32, 8, 128)), (128, 512), ("warm",), _prefill),
    "rms_norm": Subject("K", ((576,), (2048,)), (1, 64), ("warm",), _rms_norm),
    "add_rms_norm": Subject("K", ((576,), (2048,)), (1, 64), ("warm",), _add_rms_norm),
    "silu_mul": Subject("N", ((1536,),), (1, 64), ("warm",), _silu_mul),
    "gelu_tanh_mul": Subject("N", ((1536,),), (1, 64), ("warm",), _gelu_tanh_mul),
    "rope": Subject("HxGxD", ((9, 3, 64),), (1, 64), ("warm",), _rope),
}
"""Defaults: the layers of a 135M model, and of a 1 - 8 billion one where a case of it stays short."""
