"""GGUF metadata to the normalized config (`hf_config.py`). Knows the keys of each architecture, reads no weights.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; what a converter does not write (Gemma's query scale
and layer pattern, SmolLM3's layers without rope) is fixed by architecture, as every reader of these files has it.
"""

import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from octavo.errors import ModelError
from octavo.files.ggml_types import FILE_TYPES
from octavo.files.gguf_header import GGUFHeader
from octavo.loader.hf_config import Config, finish_config

ROPE_FREQS = "rope_freqs.weight"
"""Divisors of the rope frequencies, one per rotated pair (Llama 3.x)."""

_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end_of_text|>", "<|end|>", "<|eom_id|>", "</s>")


class _Keys:
    """Metadata under the prefix of the file's architecture, with errors that name file and key."""

    def __init__(self, header: GGUFHeader) -> None:
        self.header = header
        self.path = header.path
        self.architecture = header.metadata.get("general.architecture")

    def get(self, key: str, default: Any = None) -> Any:
        return self.header.metadata.get(f"{self.architecture}.{key}", default)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ModelError(f"{self.path}: metadata key {self.architecture}.{key} is {value!r}, not a number")
        return float(value)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, list) and len(set(value)) == 1:  # one entry per layer, all the same
            value = value[0]
        if type(value) is not int or value < 1:
            raise ModelError(f"{self.path}: metadata key {self.architecture}.{key} is {value!r}, not a count")
        return value

    def num_layers(self) -> int:
        """No more than there are tensors: a damaged number must not make lists that fill the memory."""
        layers, most = self.count("block_count"), len(self.header.tensors)
        if layers > most:
            raise ModelError(f"{self.path}: {self.architecture}.block_count is {layers} but there are {most} tensors")
        return layers

    def head_dim(self) -> int:
        """Stated, or the hidden values split among the heads."""
        return self.count("attention.key_length", self.hidden_per_head())

    def hidden_per_head(self) -> int:
        hidden, heads = self.count("embedding_length"), self.count("attention.head_count")
        if hidden % heads and self.get("attention.key_length") is None:
            raise ModelError(f"{self.path}: {hidden} hidden values do not split into {heads} heads")
        return hidden // heads


def gguf_config(header: GGUFHeader) -> Config:
    """The normalized config of a GGUF file.

    Raises:
        ModelError: an architecture that is not known, or a key that is missing or of the wrong kind.
    """
    keys = _Keys(header)
    if keys.architecture not in ARCHITECTURES:
        raise ModelError(
            f"{header.path}: general.architecture is {keys.architecture!r}; known: {', '.join(sorted(ARCHITECTURES))}"
        )
    if keys.get("expert_count"):
        raise ModelError(
            f"{header.path}: mixture-of-experts models ({keys.architecture}.expert_count) are not served yet"
        )
    try:
        own = ARCHITECTURES[keys.architecture](keys)
        return finish_config({**_common(keys), **own}, {})
    except ModelError as err:
        raise err if header.path in str(err) else ModelError(f"{header.path}: {err}") from err


def eos_token_ids(header: GGUFHeader) -> tuple[int, ...]:
    """Ids that end a text: those the metadata names, and the end-of-turn token that the chat template writes."""
    metadata = header.metadata
    named = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    ids = [token_id for token_id in named if isinstance(token_id, int)]
    template, tokens = metadata.get("tokenizer.chat_template"), metadata.get("tokenizer.ggml.tokens")
    if isinstance(template, str) and isinstance(tokens, list):
        ids += [tokens.index(text) for text in _TURN_ENDS if text in template and text in tokens]
    return tuple(dict.fromkeys(ids))


def generation_config(header: GGUFHeader) -> dict[str, Any]:
    """Sampling defaults that the file carries, under their Transformers names."""
    return {name: header.metadata[key] for key, name in _SAMPLING_KEYS.items() if key in header.metadata}


def file_type(header: GGUFHeader) -> str:
    """The mix of types the file was quantized to ("Q4_K_M"); without that note the most frequent type."""
    noted = header.metadata.get("general.file_type")
    if noted in FILE_TYPES:
        return FILE_TYPES[noted]
    names = [tensor.type_name for tensor in header.tensors.values()]
    return max(set(names), key=names.count)


def _common(keys: _Keys) -> Config:
    """What every decoder has."""
    header, heads = keys.header, keys.count("attention.head_count")
    hidden = keys.count("embedding_length")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{keys.path}: tensor 'token_embd.weight' is missing")
    if len(embedding.shape) != 2 or embedding.shape[1] != hidden:
        raise ModelError(
            f"{keys.path}: tensor 'token_embd.weight' has shape {list(embedding.shape)} but the model is {hidden} wide"
        )
    metadata = header.metadata
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": keys.count("feed_forward_length"),
        "num_hidden_layers": keys.num_layers(),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.count("attention.head_count_kv", heads),
        "head_dim": keys.head_dim(),
        "max_position_embeddings": keys.count("context_length"),
        "rms_norm_eps": _short_float(keys.number("attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": _rope(keys),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
    }


def _llama(keys: _Keys) -> Config:
    return {"model_type": "llama", **_biases(keys)}


def _granite(keys: _Keys) -> Config:
    return {
        "model_type": "granite",
        **_biases(keys),
        "attention_multiplier": _short_float(keys.number("attention.scale", keys.head_dim() ** -0.5)),
        "embedding_multiplier": _short_float(keys.number("embedding_scale", 1.0)),
        "residual_multiplier": _short_float(keys.number("residual_scale", 1.0)),
        "logits_scaling": _short_float(keys.number("logit_scale", 1.0)),
    }


def _smollm3(keys: _Keys) -> Config:
    layers = keys.num_layers()
    return {"model_type": "smollm3", **_biases(keys), "no_rope_layers": [int((i + 1) % 4 != 0) for i in range(layers)]}


def _qwen2(keys: _Keys) -> Config:
    return {"model_type": "qwen2", "use_sliding_window": False}


def _qwen3(keys: _Keys) -> Config:
    return {"model_type": "qwen3", "use_sliding_window": False, "attention_bias": _biases(keys)["attention_bias"]}


def _gemma2(keys: _Keys) -> Config:
    return {
        "model_type": "gemma2",
        **_gemma(keys, pattern=2, wide_layers=46),
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 30.0),
    }


def _gemma3(keys: _Keys) -> Config:
    softcap = keys.get("final_logit_softcapping")
    local = {"rope_type": "default", "rope_theta": _short_float(keys.number("rope.freq_base_swa", 10000.0))}
    return {
        "model_type": "gemma3_text",
        **_gemma(keys, pattern=6, wide_layers=62),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": softcap or None,
        "rope_parameters": {"full_attention": _rope(keys, default_base=1e6), "sliding_attention": local},
    }


def _gemma(keys: _Keys, pattern: int, wide_layers: int) -> Config:
    """What Gemma 2 and 3 share.

    Args:
        pattern: every how many layers one attends to everything.
        wide_layers: depth of the 27B model, the one whose query scale is not its head size.
    """
    layers = keys.num_layers()
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": keys.hidden_per_head() if layers == wide_layers else keys.head_dim(),
        "sliding_window": keys.count("attention.sliding_window", 4096),
        "layer_types": _layer_types(keys, layers, pattern),
    }


def _layer_types(keys: _Keys, layers: int, pattern: int) -> list[str]:
    stated = keys.get("attention.sliding_window_pattern", pattern)
    slides = stated if isinstance(stated, list) else [bool((i + 1) % int(stated)) for i in range(layers)]
    return ["sliding_attention" if sliding else "full_attention" for sliding in slides]


ARCHITECTURES: dict[str, Callable[[_Keys], Config]] = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "granite": _granite,
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "smollm3": _smollm3,
}
"""Values of general.architecture that can be served; each adds what is its own to `_common`."""


def _biases(keys: _Keys) -> Config:
    tensors = keys.header.tensors
    return {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_down.bias" in tensors}


def _rope(keys: _Keys, default_base: float = 10000.0) -> Config:
    """Rope parameters from `rope.scaling.*`, the older `rope.scale_linear`, or the tensor of explicit divisors."""
    rope: Config = {"rope_type": "default", "rope_theta": _short_float(keys.number("rope.freq_base", default_base))}
    head_dim = keys.head_dim()
    rotated = keys.count("rope.dimension_count", head_dim)
    if rotated != head_dim:
        rope["partial_rotary_factor"] = rotated / head_dim
    if ROPE_FREQS in keys.header.tensors:
        return rope | _explicit_rope(keys, rotated, rope["rope_theta"])
    kind = keys.get("rope.scaling.type", "linear" if keys.get("rope.scale_linear") else "none")
    if kind == "none":
        return rope
    factor = keys.get("rope.scaling.factor", keys.get("rope.scale_linear"))
    rope |= {"rope_type": kind, "factor": None if factor is None else _short_float(float(factor))}
    original, attention = keys.get("rope.scaling.original_context_length"), keys.get("rope.scaling.attn_factor")
    if original is not None:
        rope["original_max_position_embeddings"] = original
    if attention is not None:  # GGUF's multiplies YaRN's own temperature, the config's replaces it
        own = 0.1 * math.log(rope["factor"] or 1.0) + 1.0 if kind == "yarn" else 1.0
        rope["attention_factor"] = attention * own
    betas = {name: keys.get(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
    return rope | {name: value for name, value in betas.items() if value is not None}


def _explicit_rope(keys: _Keys, rotated: int, theta: float) -> Config:
    """The llama3 parameters that give the file's divisors, or LongRoPE's lists, which can state any divisors."""
    divisors = _read_divisors(keys.header, rotated // 2)
    original = keys.get("rope.scaling.original_context_length")
    found = fit_llama3(divisors, theta, original)
    if found is not None:
        return found
    return {
        "rope_type": "longrope",
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": keys.count("context_length"),
        "short_factor": divisors,
        "long_factor": divisors,
    }


def _read_divisors(header: GGUFHeader, count: int) -> list[float]:
    tensor = header.tensors[ROPE_FREQS]
    if tensor.type_name != "F32" or tensor.shape != (count,):
        raise ModelError(
            f"{header.path}: tensor {ROPE_FREQS!r} is {tensor.type_name} {list(tensor.shape)}; expected F32 [{count}]"
        )
    with Path(header.path).open("rb") as file:
        file.seek(tensor.offset)
        divisors = list(struct.unpack(f"<{count}f", file.read(tensor.num_bytes)))
    if not all(math.isfinite(value) and value > 0 for value in divisors):
        raise ModelError(f"{header.path}: tensor {ROPE_FREQS!r} holds a divisor that is not above 0")
    return divisors


def fit_llama3(divisors: Sequence[float], theta: float, original: int | None = None) -> Config | None:
    """Find the llama3 rope parameters whose divisors these are, to float32's precision; None if there are none.

    Between the two wavelengths 1 / divisor is linear in the frequency, 1/F + (1 - 1/F) (a f - b); only original / low
    and original / high matter, so low_freq_factor is 1 unless `original` (or Llama's own 8192) says otherwise.
    """
    freqs = [theta ** (-index / len(divisors)) for index in range(len(divisors))]
    factor = round(max(divisors), 4)
    candidates = [(1.0, 4.0, float(length)) for length in dict.fromkeys((original or 8192, 8192))]
    middle = [i for i, value in enumerate(divisors) if 1 + 1e-4 < value < factor * (1 - 1e-4)]
    if len(middle) >= 2:
        smooth = [(1 / divisors[i] - 1 / factor) / (1 - 1 / factor) for i in middle]
        first, last = middle[0], middle[-1]
        slope = (smooth[0] - smooth[-1]) / (freqs[first] - freqs[last])
        offset = slope * freqs[first] - smooth[0]
        if offset > 0:
            high = round(1 + 1 / offset, 2)
            candidates.append((1.0, high, float(round(2 * math.pi * slope * (high - 1)))))
    for low, high, length in candidates:
        expected = llama3_divisors(freqs, factor, low, high, length)
        if all(math.isclose(a, b, rel_tol=2e-6) for a, b in zip(divisors, expected, strict=True)):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": int(length),
            }
    return None


def llama3_divisors(freqs: Sequence[float], factor: float, low: float, high: float, original: float) -> list[float]:
    """Divisors of the plain rope frequencies under the scaling of Llama 3.1, as Meta publishes it with the weights."""
    divisors = []
    for freq in freqs:
        rotations = original * freq / (2 * math.pi)
        smooth = min(1.0, max(0.0, (rotations - low) / (high - low)))
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def _short_float(value: float) -> float:
    """The shortest decimal that rounds to this float32: metadata says 9.99999974e-06 where the config said 1e-05."""
    return float(f"{value:.7g}")
