"""Rotary position embedding: the table of cosines and sines, for every scaling that config files name.

Frequencies and angles are computed in float32 in the order in which Transformers computes them, so that they also agree
at long positions, where the rounding of an angle reaches 1e-3. A token's rotation depends on its own request only,
never on what happens to run beside it or on how a prompt is cut into chunks. Two scalings are defined by the length of
the running sequence:

- `dynamic` (NTK): the base grows with the length. As in Transformers, a prompt is rotated by the base of its whole
  length and each generated token by the base of the length it ends; there is no scaling up to the original maximum. One
  prefix has different keys in prompts of different length beyond it, which therefore share no pages
  (`engine/input_processor.py`).
- `longrope`: the long factors if `max_model_len` exceeds the original maximum, else the short ones. Transformers
  switches when a sequence crosses it, which would invalidate the keys cached so far.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from octavo.errors import ModelError
from octavo.layers.build import Build
from octavo.layers.config import TextConfig


class Dims(NamedTuple):
    """The sizes that frequencies depend on, beside the rope parameters.

    Attributes:
        rotary_dim: leading dimensions of a head that rotate.
        max_position_embeddings: the model's length, the original one where a scaling does not state it.
        max_model_len: rows of the table.
    """

    rotary_dim: int
    max_position_embeddings: int
    max_model_len: int

    def powers(self, base: float | Tensor) -> Tensor:
        """`base ** (2i / rotary_dim)`: [rotary_dim / 2], or [P, rotary_dim / 2] for a base [P, 1]."""
        return base ** (torch.arange(0, self.rotary_dim, 2, dtype=torch.float32) / self.rotary_dim)


def default_frequencies(p: dict[str, Any], dims: Dims) -> Tensor:
    """Su et al. 2021, arXiv:2104.09864."""
    return 1.0 / dims.powers(p["rope_theta"])


def linear_frequencies(p: dict[str, Any], dims: Dims) -> Tensor:
    """Position interpolation, Chen et al. 2023, arXiv:2306.15595."""
    return 1.0 / dims.powers(p["rope_theta"]) / p["factor"]


def dynamic_frequencies(p: dict[str, Any], dims: Dims) -> Tensor:
    """NTK-aware scaling (bloc97, emozilla 2023): a row of frequencies per length, 1 .. max_model_len."""
    factor, original = p["factor"], dims.max_position_embeddings
    lengths = torch.arange(1, dims.max_model_len + 1, dtype=torch.float64).clamp(min=original)
    growth = (factor * lengths / original - (factor - 1)) ** (dims.rotary_dim / (dims.rotary_dim - 2))
    return 1.0 / dims.powers((p["rope_theta"] * growth).float().unsqueeze(1))


def yarn_frequencies(p: dict[str, Any], dims: Dims) -> Tensor:
    """YaRN, Peng et al. 2023, arXiv:2309.00071."""
    dim, base, original = dims.rotary_dim, p["rope_theta"], p["original_max_position_embeddings"]

    def dim_that_makes(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dim_that_makes(p["beta_fast"]), dim_that_makes(p["beta_slow"])
    if p["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
    keep = 1 - ramp.clamp(0, 1)
    powers = dims.powers(base)
    return 1.0 / (p["factor"] * powers) * (1 - keep) + 1.0 / powers * keep


def longrope_frequencies(p: dict[str, Any], dims: Dims) -> Tensor:
    """LongRoPE, Ding et al. 2024, arXiv:2402.13753: a divisor per frequency. GGUF's explicit divisors come as this."""
    divisors = p["long_factor" if dims.max_model_len > p["original_max_position_embeddings"] else "short_factor"]
    return 1.0 / (torch.tensor(divisors, dtype=torch.float32) * dims.powers(p["rope_theta"]))


def llama3_frequencies(p: dict[str, Any], dims: Dims) -> Tensor:
    """Llama 3.1: low frequencies divided by `factor`, high ones kept, a smooth passage between."""
    factor, low, high = p["factor"], p["low_freq_factor"], p["high_freq_factor"]
    original = p["original_max_position_embeddings"]
    inv_freq = 1.0 / dims.powers(p["rope_theta"])
    wavelength = 2 * math.pi / inv_freq
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * inv_freq / factor + smooth * inv_freq
    scaled = torch.where(wavelength > original / low, inv_freq / factor, between)
    return torch.where(wavelength < original / high, inv_freq, scaled)


ROPE_TYPES: dict[str, Callable[[dict[str, Any], Dims], Tensor]] = {
    "default": default_frequencies,
    "linear": linear_frequencies,
    "dynamic": dynamic_frequencies,
    "yarn": yarn_frequencies,
    "longrope": longrope_frequencies,
    "llama3": llama3_frequencies,
}
"""By `rope_type`: radians per position, [rotary_dim / 2], or a row per length, [max_model_len, rotary_dim / 2]."""


class Rope:
    """How a layer rotates its queries and keys.

    Args:
        parameters: `rope_type`, `rope_theta` and what the type needs, complete (`loader/hf_config.py`).
        max_position_embeddings: length of the model, where a scaling refers to it.
        interleaved: which dimensions form a pair, see `ops.rope`.

    Attributes:
        by_length: the frequencies depend on the length of the sequence; `rotations` then makes the rows of a step.

    Raises:
        ModelError: for an unknown type.
    """

    def __init__(
        self, head_dim: int, parameters: dict[str, Any], max_position_embeddings: int, interleaved: bool = False
    ) -> None:
        if parameters["rope_type"] not in ROPE_TYPES:
            raise ModelError(f"unknown rope_type {parameters['rope_type']!r}; known: {', '.join(ROPE_TYPES)}")
        self.parameters = parameters
        self.rotary_dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
        self.max_position_embeddings = max_position_embeddings
        self.interleaved = interleaved
        self.by_length = parameters["rope_type"] == "dynamic"

    @classmethod
    def from_config(cls, c: TextConfig, layer_type: str = "full_attention") -> "Rope":
        """The rope of one kind of layer."""
        return cls(c.head_dim, c.rope_parameters_of(layer_type), c.max_position_embeddings)

    def table(self, build: Build) -> Tensor:
        """[max_model_len, rotary_dim] float32, cosines then sines; layers with equal ropes share one. `by_length`: the
        frequencies of every length, [max_model_len, rotary_dim / 2].
        """
        key = (repr(sorted(self.parameters.items())), self.rotary_dim, self.max_position_embeddings)
        if key not in build.tables:
            build.tables[key] = self.compute_table(build.max_model_len).to(build.device)
        return build.tables[key]

    def compute_table(self, max_model_len: int) -> Tensor:
        """What `table` shares."""
        dims = Dims(self.rotary_dim, self.max_position_embeddings, max_model_len)
        inv_freq = ROPE_TYPES[self.parameters["rope_type"]](self.parameters, dims)
        if self.by_length:
            return inv_freq
        angles = torch.arange(max_model_len, dtype=torch.float32).unsqueeze(1) * inv_freq
        # YaRN and LongRoPE sharpen attention by scaling queries and keys.
        return torch.cat((angles.cos(), angles.sin()), 1) * self.parameters.get("attention_factor", 1.0)

    def rotations(self, frequencies: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """The rows of a step where they depend on lengths: [T, rotary_dim] float32, cosines then sines.

        Args:
            frequencies: from `table`.
            positions, lengths: [T], of each token and of its sequence, see `ForwardBatch`.
        """
        angles = positions.unsqueeze(1) * frequencies[lengths - 1]
        return torch.cat((angles.cos(), angles.sin()), 1)
