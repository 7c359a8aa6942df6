"""A forward pass written down: ops over named inputs, weights and buffers, with the number of tokens T left open.

`models/trace.py` writes a plan, a provider replays it. Knows no models, batches or addresses.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from octavo.ops.dispatch import OPS
from octavo.ops.empty_weight import Weight
from octavo.registry import Registry

TOKENS = 1_048_583
"""Stands for T in the shapes of a plan. A prime that no model has as a size; always a leading dimension."""

ALIGNMENT = 64
"""Bytes: buffers start at multiples of it."""


class Untraceable(Exception):
    """There is no plan of a model, or none that a provider replays; says why."""


@dataclass(frozen=True, slots=True)
class View:
    """All or part of an input or a buffer: the one called `base`, from element `offset` on."""

    base: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def has_all_tokens(self) -> bool:
        """Whether its rows are those of all tokens, in order, so that its other sizes do not depend on their number."""
        return self.shape[0] == TOKENS and self.offset < self.strides[0] and max(self.shape[1:], default=0) < TOKENS

    def __str__(self) -> str:
        if self.shape[0] != TOKENS:
            return f"{self.base}[{self.offset // math.prod(self.shape)}]" if self.offset else self.base
        width = math.prod(self.shape[1:])
        columns = f"[:, {self.offset}:{self.offset + width}]" if width != self.strides[0] else ""
        return self.base + columns + (f" as {self.shape[1]} x {self.shape[2]}" if len(self.shape) == 3 else "")


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """A weight by its name in the model. What it holds may be written anew at any time; the plan stays as it is."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class RowsView:
    """A KV group's rows, as `paged_attention` takes them."""

    query_start: View
    seq_lens: View
    block_table: View

    def __str__(self) -> str:
        return f"({self.query_start}, {self.seq_lens}, {self.block_table})"


Argument = View | WeightSlot | RowsView | int | float | None


class Call(NamedTuple):
    """One op in its out-form, with the arguments of its reference by name."""

    op: str
    args: dict[str, Argument]

    def views(self) -> Iterator[View]:
        """What it reads or writes beside weights."""
        for value in self.args.values():
            if isinstance(value, View):
                yield value
            elif isinstance(value, RowsView):
                yield from (getattr(value, field.name) for field in fields(value))

    def __str__(self) -> str:
        result = f"{self.args['out']} = " if "out" in self.args else ""
        parameters = inspect.signature(OPS[self.op].reference).parameters
        shown = {k: v for k, v in self.args.items() if k != "out" and v != parameters[k].default}
        given = [f"{name}={value}" for name, value in shown.items()]
        return f"{result}{self.op}({', '.join(given)})"


class Buffer(NamedTuple):
    """A tensor [T, ...] that an op makes.

    Attributes:
        row_bytes: bytes per token.
        offset: bytes per token that lie before it in the arena: with T tokens it begins at `offset * T`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    row_bytes: int
    offset: int


@dataclass(frozen=True)
class Plan:
    """A model's forward pass over T tokens of R rows.

    Attributes:
        inputs: what a step brings, by name, as far as it is used (`models.trace.named_inputs`).
        weights: by the name of their slot. The plan keeps them and refers to them by slot only: values may be written
            in place at any time.
        buffers: by name; places in the arena are shared by buffers whose uses do not overlap.
        arena_bytes: bytes per token of all buffers.
        output: the final hidden states, in a buffer.
    """

    inputs: dict[str, View]
    weights: dict[str, Weight]
    buffers: dict[str, Buffer]
    arena_bytes: int
    calls: list[Call]
    output: View

    def __str__(self) -> str:
        kinds = {name: str(view.dtype).removeprefix("torch.") for name, view in self.inputs.items()}
        lines = [f"inputs: {', '.join(f'{name} {kind}' for name, kind in kinds.items())}"]
        lines += [f"arena: {self.arena_bytes} bytes per token"]
        for buffer in self.buffers.values():
            shape = ", ".join(["T", *map(str, buffer.shape[1:])])
            lines.append(f"  {buffer.name} [{shape}] {str(buffer.dtype).removeprefix('torch.')} at {buffer.offset}")
        lines.append("ops:")
        lines += [f"  {call}" for call in self.calls]
        return "\n".join([*lines, f"returns {self.output}"])


def make_plan(
    inputs: Mapping[str, View], weights: Mapping[str, Weight], made: Sequence[View], calls: list[Call], output: View
) -> Plan:
    """A plan of `calls`, its buffers placed.

    Args:
        inputs: all there are; those that no op reads are left out.
        made: every tensor that an op makes, in the order in which they are made.
    """
    used = {view.base for call in calls for view in call.views()}
    buffers, arena_bytes = place_buffers(made, calls, output)
    kept = {name: view for name, view in inputs.items() if name in used}
    return Plan(kept, dict(weights), buffers, arena_bytes, calls, output)


def place_buffers(made: Sequence[View], calls: Sequence[Call], output: View) -> tuple[dict[str, Buffer], int]:
    """Put each buffer at the lowest place that is free from its first use to its last. Returns the arena's size too."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, call in enumerate(calls):
        for view in call.views():
            first.setdefault(view.base, index)
            last[view.base] = index
    last[output.base] = len(calls)
    buffers: dict[str, Buffer] = {}
    for whole in made:
        size = math.prod(whole.shape[1:]) * whole.dtype.itemsize
        living = sorted(
            (other.offset, other.offset + other.row_bytes)
            for other in buffers.values()
            if last[other.name] >= first[whole.base]
        )
        offset = 0
        for begin, end in living:
            if offset + size <= begin:
                break
            offset = max(offset, -(-end // ALIGNMENT) * ALIGNMENT)
        buffers[whole.base] = Buffer(whole.base, whole.shape, whole.dtype, size, offset)
    total = max((buffer.offset + buffer.row_bytes for buffer in buffers.values()), default=0)
    return buffers, -(-total // ALIGNMENT) * ALIGNMENT


class Replay(Protocol):
    """A plan that a provider has made ready to run."""

    def run(self, inputs: Mapping[str, Tensor], num_tokens: int, num_rows: int) -> Tensor:
        """The plan's output [T, hidden], in memory that the next run writes again.

        Args:
            inputs: those of the plan, of the types it names; others are ignored.

        Raises:
            ValueError: more tokens than it was made for.
        """
        ...


REPLAYS: Registry[Callable[[Plan, int], Replay]] = Registry("replay", {"cpu": "octavo.kernels.cpu.plan:NativePlan"})
"""By provider: makes a plan ready for steps of at most so many tokens; raises `Untraceable` for what it cannot run."""
