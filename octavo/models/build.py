"""From a resolved reference and a stream of tensors to a model that runs. Knows no file formats.

Weights are held once: the model's tensors are made empty, and each tensor of the stream is copied into its place, in
any order, some rows at a time. Nothing is left uninitialized: a tensor that is missing, unknown or of another shape
stops the start-up.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from octavo.config import ModelSpec
from octavo.errors import ModelError
from octavo.layers.build import Build
from octavo.layers.config import TextConfig
from octavo.loader.weights import StoredWeight
from octavo.models.base import CausalLM
from octavo.models.registry import MODELS
from octavo.quantization.interface import Slot
from octavo.quantization.registry import format_of


def load_model(
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    weights: Iterable[tuple[str, Tensor]],
    max_model_len: int | None = None,
) -> CausalLM:
    """Build the model of `spec` on `device` and fill it.

    Args:
        weights: names as in a Transformers checkpoint; converted to `dtype` here if they are not.
        max_model_len: positions to prepare for; the model's context length by default.

    Raises:
        ModelError: an unknown architecture or setting, or a tensor that is missing, unknown or of the wrong shape.
    """
    model = build_model(spec, dtype, device, max_model_len)
    load_weights(model, weights, spec.path)
    return model


def build_model(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device, max_model_len: int | None = None
) -> CausalLM:
    """The model of `spec` with empty tensors; on the meta device it can be traced."""
    if spec.architecture not in MODELS:
        raise ModelError(
            f"{spec.name}: architecture {spec.architecture!r} is not supported; known: {', '.join(MODELS)}"
        )
    model = MODELS.load(spec.architecture)(TextConfig(spec.hf_config))
    model.materialize(Build(dtype, device, max_model_len or spec.context_length, format_of))
    return model


def check_weights(model: CausalLM, shapes: Iterable[tuple[str, Sequence[int]]], source: str) -> None:
    """Refuse a checkpoint by the names and shapes of its tensors, before any of them is read.

    Raises:
        ModelError: names the source and the tensor.
    """
    slots, seen = _Slots(model, source), set[str]()
    for name, shape in shapes:
        if name in seen:
            raise ModelError(f"{source}: tensor {name!r} is there twice")
        seen.add(name)
        slots.find(name, shape)
    slots.require_all()


def load_weights(model: CausalLM, weights: Iterable[tuple[str, Tensor]], source: str, partial: bool = False) -> None:
    """Copy tensors into the model's slots; may be called again with newer values.

    Args:
        source: where they come from, for error messages.
        partial: the stream may leave out tensors (an update of some weights).

    Raises:
        ModelError: names the source and the tensor.
    """
    read_weights(model, (_stored(name, tensor) for name, tensor in weights), source, partial)


def read_weights(model: CausalLM, weights: Iterable[StoredWeight], source: str, partial: bool = False) -> None:
    """As `load_weights`, from where they are stored, part by part: no tensor is ever there twice."""
    slots = _Slots(model, source)
    for name, shape, read in weights:
        slot, first_row = slots.find(name, shape), 0
        if slot is None:
            continue
        for rows in read():
            slot.write(rows, first_row)
            first_row += len(rows)
    if not partial:
        slots.require_all()


def _stored(name: str, tensor: Tensor) -> StoredWeight:
    return StoredWeight(name, tensor.shape, lambda: (tensor,))


class _Slots:
    """The slots of a model, and which of them have been asked for."""

    def __init__(self, model: CausalLM, source: str) -> None:
        self._model = model
        self._source = source
        self._slots = {slot.name: slot for slot in model.slots()}
        self._missing = {name for name, slot in self._slots.items() if slot.required}

    def find(self, checkpoint_name: str, shape: Sequence[int]) -> Slot | None:
        """The slot of a checkpoint's tensor; None for one that is of no use here."""
        name = self._model.tensor_name(checkpoint_name)
        if name is None:
            return None
        if name not in self._slots:
            raise ModelError(
                f"{self._source}: tensor {checkpoint_name!r} is not part of a {type(self._model).__name__} with this"
                " configuration"
            )
        slot = self._slots[name].slot
        if tuple(shape) != slot.shape:
            raise ModelError(
                f"{self._source}: tensor {checkpoint_name!r} is {list(shape)} but the config says {list(slot.shape)}"
            )
        self._missing.discard(name)
        return slot

    def require_all(self) -> None:
        """Refuse if a slot has not been asked for."""
        if self._missing:
            some = ", ".join(sorted(self._missing)[:5])
            raise ModelError(
                f"{self._source}: {len(self._missing)} of {len(self._slots)} tensors are missing from the checkpoint:"
                f" {some}"
            )
