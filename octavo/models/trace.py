"""Trace a model into a plan: run its forward once on the meta device and write down the ops it calls.

Views are free; anything else outside the closed op set makes a model untraceable. Knows no providers.
"""

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.attention.batch import AttentionBatch, ForwardBatch
from octavo.models.base import CausalLM
from octavo.ops.dispatch import OPS, Op
from octavo.ops.empty_weight import Weight
from octavo.ops.plan import TOKENS, Argument, Call, Plan, RowsView, Untraceable, View, WeightSlot, make_plan

META = torch.device("meta")
ROWS = 7
"""Rows of the traced batch. Ops take their number from the batch, so it is nowhere in the plan."""

aten = torch.ops.aten
VIEWS = {
    aten.select.int,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.view.default,
    aten._unsafe_view.default,
}
"""What a forward pass may do to tensors beside the ops."""


def named_inputs(batch: ForwardBatch) -> dict[str, Tensor]:
    """What a plan reads of a step, by name; KV groups by number."""
    inputs = {"input_ids": batch.input_ids, "positions": batch.positions, "lengths": batch.lengths}
    for group, (rows, pages) in enumerate(zip(batch.attention, batch.kv_pages, strict=True)):
        inputs[f"query_start.{group}"] = rows.query_start
        inputs[f"seq_lens.{group}"] = rows.seq_lens
        inputs[f"block_table.{group}"] = rows.block_table
        inputs[f"slot_mapping.{group}"] = rows.slot_mapping
        inputs[f"pages.{group}"] = pages
    return inputs


def trace(model: CausalLM, pools: Sequence[Tensor]) -> Plan:
    """The plan of `model.forward`.

    Args:
        pools: KV pages as in `ForwardBatch`; only their shapes matter.

    Raises:
        Untraceable: the model computes something outside the op set.
    """
    with torch.inference_mode(False), torch.no_grad():  # in inference mode a view does not know its base
        batch = symbolic_batch(pools)
        recorder = Recorder(batch, named_weights(model))
        with recorder.listening(), recorder:
            hidden = model.forward(batch)
    return recorder.plan(hidden)


def symbolic_batch(pools: Sequence[Tensor]) -> ForwardBatch:
    """A batch of meta tensors. Every tensor is one of its own, so that it is known by its storage."""

    def ints(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=META)

    attention = [
        AttentionBatch(
            query_start=ints(ROWS + 1, dtype=torch.int32),
            seq_lens=ints(ROWS, dtype=torch.int32),
            block_table=ints(ROWS, 3, dtype=torch.int32),
            slot_mapping=ints(TOKENS),
            max_query_len=TOKENS,
            max_seq_len=TOKENS,
        )
        for _ in pools
    ]
    pages = [torch.empty_like(pool, device=META) for pool in pools]
    return ForwardBatch(ints(TOKENS), ints(TOKENS), ints(TOKENS), attention, pages)


def named_weights(model: nn.Module) -> dict[str, Weight]:
    """Every tensor of every layer by dotted name; a shared one by its first."""
    found: dict[int, tuple[str, Weight]] = {}
    for name, module in model.named_modules():
        for holder in (module, getattr(module, "weights", None)):  # a linear layer's are in its format
            for attribute, value in (vars(holder) if holder is not None else {}).items():
                if hasattr(value, "shape") and hasattr(value, "dtype"):
                    found.setdefault(id(value), (f"{name}.{attribute}", value))
    return dict(found.values())


class Kind(NamedTuple):
    """What is known of a tensor without its values."""

    shape: torch.Size
    dtype: torch.dtype


def _empty(kind: Kind) -> Tensor:
    return torch.empty(kind.shape, dtype=kind.dtype, device=META)


class Recorder(TorchDispatchMode):
    """Writes down every op; sees every other torch call of its thread, and lets only views pass."""

    def __init__(self, batch: ForwardBatch, weights: dict[str, Weight]) -> None:
        super().__init__()
        self._inside_op = False
        self._thread = threading.get_ident()
        self._weights = weights
        self._weight_names = {id(weight): name for name, weight in weights.items()}
        self._rows = {id(rows): rows for rows in batch.attention}
        self._calls: list[Call] = []
        self._results: dict[tuple[object, ...], Kind | None] = {}
        self._made: list[Tensor] = []
        self._bases: dict[int, str] = {}
        self._inputs = named_inputs(batch)
        for name, tensor in self._inputs.items():
            self._bases[id(tensor)] = name

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; to say so, torch would import its whole compiler, which takes two seconds."""
        return False

    def plan(self, output: Tensor) -> Plan:
        """What was written down; `output` is what the model returned."""
        slots = {value.name for call in self._calls for value in call.args.values() if isinstance(value, WeightSlot)}
        weights = {name: weight for name, weight in self._weights.items() if name in slots}
        inputs = {name: self._view(tensor) for name, tensor in self._inputs.items()}
        return make_plan(inputs, weights, [self._view(made) for made in self._made], self._calls, self._view(output))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._inside_op and func not in VIEWS:
            raise Untraceable(f"it calls {func}, which is neither an op nor a view")
        return func(*args, **(kwargs or {}))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """All ops come here, if they are called by this thread."""
        impls = {name: made.impl for name, made in OPS.items()}
        for name, made in OPS.items():
            made.impl = partial(self._call, made, impls[name], inspect.signature(made.reference))
        try:
            yield
        finally:
            for name, impl in impls.items():
                OPS[name].impl = impl

    def _call(
        self,
        op: Op[..., Any],
        impl: Callable[..., Any],
        signature: inspect.Signature,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if threading.get_ident() != self._thread:  # another engine's
            return impl(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {name: self._argument(op.name, value) for name, value in bound.arguments.items()}
        if bound.arguments.get("out") is None:
            made = self._make(op, bound.arguments)
            if made is not None:
                arguments["out"] = self._view(made)
            result = made
        else:
            result = bound.arguments["out"]
        self._calls.append(Call(op.name, arguments))
        return result

    def _make(self, op: Op[..., Any], arguments: dict[str, Any]) -> Tensor | None:
        """A tensor like the op's result, by its meta kernel; None if it has none."""
        kinds = {name: self._kind(value) for name, value in arguments.items()}
        key = (op.name, *kinds.values())
        with self._free():
            if key not in self._results:  # layers are alike, and torch takes its time over meta tensors
                known = {name: _empty(kind) for name, kind in kinds.items() if kind}
                result = op.meta(**{**arguments, **known})
                self._results[key] = None if result is None else Kind(result.shape, result.dtype)
            kind = self._results[key]
            made = None if kind is None else _empty(kind)
        if made is not None:
            self._bases[id(made)] = f"b{len(self._made)}"
            self._made.append(made)
        return made

    @contextmanager
    def _free(self) -> Iterator[None]:
        """Any torch call may be made here, as inside an op."""
        self._inside_op = True
        try:
            yield
        finally:
            self._inside_op = False

    def _kind(self, value: Any) -> Kind | None:
        """Shape and type of a tensor or a weight: all that a result's depend on."""
        is_weight = id(value) in self._weight_names
        return Kind(value.shape, value.dtype) if is_weight or isinstance(value, Tensor) else None

    def _argument(self, op: str, value: Any) -> Argument:
        if id(value) in self._weight_names:
            return WeightSlot(self._weight_names[id(value)])
        if isinstance(value, Tensor):
            return self._view(value)
        if id(value) in self._rows:
            rows = self._rows[id(value)]
            return RowsView(*map(self._view, (rows.query_start, rows.seq_lens, rows.block_table)))
        if value is None or isinstance(value, int | float):
            return value
        raise Untraceable(f"{op} gets a {type(value).__name__}, which a plan cannot hold")

    def _view(self, x: Tensor) -> View:
        whole = x if x._base is None else x._base
        base = self._bases.get(id(whole))
        if base is None:
            raise Untraceable("it uses a tensor that is no weight, no input and no result of an op")
        view = View(base, int(x.storage_offset()), tuple(x.shape), x.stride(), x.dtype)
        if whole.shape[0] == TOKENS and not view.has_all_tokens():
            raise Untraceable(f"it takes apart the tokens of {base}")
        return view
