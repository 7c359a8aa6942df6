"""A plan on the native kernels: one call runs all its ops, by the kernels that run them one by one, so the bits are the
same.

Each op becomes the record of a native call, its arguments made by the function that also makes them for a call at once.
Only addresses differ: they name a slot, whose place is filled in anew for every step (csrc/cpu/plan.h).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from octavo.kernels.cpu import attention, linear, native, rowwise
from octavo.kernels.cpu.linear import PanelWeight
from octavo.kernels.cpu.native import Call
from octavo.ops.plan import TOKENS, Argument, Plan, RowsView, Untraceable, View, WeightSlot

_native: Any = native.load()

CALLS: dict[str, tuple[str, Callable[..., Call | None]]] = {
    "add_rms_norm": ("norm", rowwise.add_rms_norm_call),
    "embedding": ("embedding", linear.embedding_call),
    "gelu_mul": ("gelu_mul", rowwise.gated_call),
    "gelu_tanh_mul": ("gelu_tanh_mul", rowwise.gated_call),
    "linear": ("linear", linear.linear_call),
    "paged_attention": ("paged_attention", attention.paged_attention_call),
    "rms_norm": ("norm", rowwise.rms_norm_call),
    "rope": ("rope", rowwise.rope_call),
    "scale": ("scale", rowwise.scale_call),
    "silu_mul": ("silu_mul", rowwise.gated_call),
    "write_kv": ("write_kv", rowwise.write_kv_call),
}
"""By op: the native function, and what makes its arguments of the op's (by name, `out` included)."""


class Placed:
    """A tensor of a plan, as far as a `Call` asks for it (`native.Array`)."""

    is_cpu = True

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> None:
        self.address = address
        self.shape = torch.Size(shape)
        self.strides = strides
        self.dtype = dtype

    def data_ptr(self) -> int:
        """Its slot and its offset there."""
        return self.address

    def stride(self, dim: int, /) -> int:
        """In elements."""
        return self.strides[dim]

    def is_contiguous(self) -> bool:
        """As `Tensor.is_contiguous`."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


class _PlacedRows(NamedTuple):
    """A `RowsView` in its place."""

    query_start: Placed
    seq_lens: Placed
    block_table: Placed


class _PlacedMatrix(NamedTuple):
    """What a `Call` asks of a `PanelWeight`'s matrix."""

    address: int


class NativePlan:
    """See `octavo.ops.plan.Replay`.

    Args:
        max_tokens: most tokens of a step; the arena has room for them.

    Raises:
        Untraceable: there are no native kernels, an op has none, or not for what it gets here.
    """

    def __init__(self, plan: Plan, max_tokens: int) -> None:
        if _native is None:
            raise Untraceable("the native kernels are not installed")
        self._plan = plan  # keeps the weights
        self._max_tokens = max_tokens
        self._native = _native.Plan(TOKENS)
        self._inputs = list(plan.inputs.items())
        self._bases: dict[str, int] = {name: self._native.input() for name in plan.inputs}
        self._slots: dict[str, int] = {name: self._native.weight() for name in plan.weights}
        self._bases.update((name, self._native.buffer(buffer.offset)) for name, buffer in plan.buffers.items())
        for op, args in plan.calls:
            if op not in CALLS:
                raise Untraceable(f"{op} has no native version that a plan could call")
            function, make_call = CALLS[op]
            call = make_call(**{name: self._place(value) for name, value in args.items()})
            if call is None:
                raise Untraceable(f"the native {op} does not cover what it gets here")
            getattr(self._native, function)(*call)
        self.bind_weights()
        self._arena = torch.empty(plan.arena_bytes * max_tokens, dtype=torch.uint8)

    def bind_weights(self) -> None:
        """Take the addresses of the weights. Needed again only if one has moved, not if one was written."""
        for name, weight in self._plan.weights.items():
            address = weight.matrix.address if isinstance(weight, PanelWeight) else weight.data_ptr()  # type: ignore[union-attr]
            self._native.bind(self._slots[name], address)

    def run(self, inputs: Mapping[str, Tensor], num_tokens: int, num_rows: int) -> Tensor:
        """See `octavo.ops.plan.Replay`."""
        if num_tokens > self._max_tokens:
            raise ValueError(f"a step of {num_tokens} tokens does not fit a plan made for {self._max_tokens}")
        places: list[int] = []
        for name, view in self._inputs:
            tensor = inputs[name]
            assert tensor.dtype is view.dtype and (tensor.is_contiguous() or tensor.stride() == view.strides), name
            places += (tensor.data_ptr(), tensor.stride(0))
        self._native.run(self._arena.data_ptr(), places, num_tokens, num_rows)
        return self._output(num_tokens)

    def _output(self, num_tokens: int) -> Tensor:
        buffer = self._plan.buffers[self._plan.output.base]
        start = buffer.offset * num_tokens
        return self._arena[start : start + buffer.row_bytes * num_tokens].view(buffer.dtype).view(num_tokens, -1)

    def _place(self, value: Argument) -> object:
        if isinstance(value, View):
            address = self._bases[value.base] + value.offset * value.dtype.itemsize
            return Placed(address, value.shape, value.strides, value.dtype)
        if isinstance(value, RowsView):
            return _PlacedRows(*map(self._place, (value.query_start, value.seq_lens, value.block_table)))  # type: ignore[arg-type]
        if isinstance(value, WeightSlot):
            weight, slot = self._plan.weights[value.name], self._slots[value.name]
            if isinstance(weight, Tensor):
                return Placed(slot, tuple(weight.shape), weight.stride(), weight.dtype)
            if isinstance(weight, PanelWeight):
                return PanelWeight(_PlacedMatrix(slot), weight.dtype, weight.begin, weight.shape, weight.whole)
            raise Untraceable(f"{value.name} is held in a layout that the native kernels do not read")
        return value
