"""One form of a model's config.json, whatever release of Transformers wrote it. Knows keys and their meaning, no files.

The normalized form, which `ModelSpec.hf_config` holds and model definitions are written against, is the flat config of
the *text* model with every default of its class filled in, and these certainties:

* `head_dim`, `num_key_value_heads`, `hidden_act` (Gemma's `hidden_activation` included), `tie_word_embeddings`,
  `model_type` and `architectures` are always there.
* `layer_types` is always a list of `num_hidden_layers` strings, "full_attention" or "sliding_attention";
  `sliding_window` is an int if one of them is "sliding_attention", and None otherwise.
* `rope_parameters` is always there, and `rope_theta`, `rope_scaling`, `rope_local_base_freq` never are. It is flat,

      {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, ...}

  or, where it varies by layer type (Gemma 3), one such dict per layer type:

      {"full_attention": {"rope_type": ..., ...}, "sliding_attention": {"rope_type": ..., ...}}

  By `rope_type` a flat dict holds, beside `rope_theta` and (only if below 1) `partial_rotary_factor`:

      default   nothing
      linear    factor
      dynamic   factor; the original length is the config's `max_position_embeddings`
      yarn      factor, original_max_position_embeddings, attention_factor, beta_fast, beta_slow, truncate
      longrope  factor, original_max_position_embeddings, attention_factor, short_factor, long_factor
                (each a list of rotated/2 divisors; both equal where a GGUF file gives explicit frequencies)
      llama3    factor, original_max_position_embeddings, low_freq_factor, high_freq_factor

  all of them numbers, never None: what a config leaves out has been derived by the method's own rule.
"""

import math
from collections.abc import Mapping
from typing import Any

from octavo.errors import ModelError

Config = dict[str, Any]

CAUSAL_LM_CLASSES = {
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
"""Text model of a `model_type`, for wrappers (images and text) and files that name no architecture."""

ROPE_REQUIRED = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
"""Keys each rope type cannot do without."""

LAYER_TYPES = ("full_attention", "sliding_attention")

_ROPE_ALIASES = {"su": "longrope"}
_HAS_ORIGINAL_LENGTH = ("yarn", "longrope", "llama3")
_ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq", "partial_rotary_factor")
_INHERITED = ("eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings", "dtype", "torch_dtype")
_REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")

MAX_LAYERS = 4096
"""There are lists with an entry per layer, and a wrong number must not fill the memory with them."""


def normalize_config(raw: Mapping[str, Any]) -> Config:
    """Bring a config.json of any age into the normalized form; defaults come from the Transformers config class.

    Raises:
        ModelError: an unknown model type or rope type, a missing key, or a value of the wrong kind; names the key.
    """
    text = text_config(raw)
    own_rope = {key: text.pop(key) for key in _ROPE_KEYS if key in text}
    filled = fill_defaults(text)
    default_rope = filled.pop("rope_parameters", None) or {"rope_theta": 10000.0}
    if text.get("layer_types") is None and filled.get("layer_types") is None:
        filled.pop("layer_types", None)
    return finish_config({**filled, **own_rope}, default_rope)


def text_config(raw: Mapping[str, Any]) -> Config:
    """The text model's part of a config.json: itself, or `text_config` of a model that also takes images."""
    if not isinstance(raw.get("text_config"), Mapping):
        return dict(raw)
    text = {key: raw[key] for key in _INHERITED if key in raw} | dict(raw["text_config"])
    model_type = text.get("model_type")
    if model_type not in CAUSAL_LM_CLASSES:
        raise ModelError(f"text_config has the model_type {model_type!r}; known: {', '.join(CAUSAL_LM_CLASSES)}")
    text["architectures"] = [CAUSAL_LM_CLASSES[model_type]]
    return text


def fill_defaults(text: Mapping[str, Any]) -> Config:
    """Add what config.json leaves out, as the Transformers class of its `model_type` has it.

    Raises:
        ModelError: Transformers does not know the model type, or refuses a value.
    """
    from transformers import AutoConfig  # noqa: PLC0415 (a second to import, and GGUF files need none of it)

    model_type = text.get("model_type")
    if not model_type:
        raise ModelError("config.json has no model_type; it is not the config of a Transformers model")
    options = {key: value for key, value in text.items() if key not in ("model_type", "transformers_version")}
    _check_num_layers(options)
    try:
        filled: Config = AutoConfig.for_model(model_type, **options).to_dict()
    except Exception as err:  # its validators raise many kinds, none of ours, over several lines
        raise ModelError(f"config.json does not describe a {model_type!r} model: {' '.join(str(err).split())}") from err
    return filled


def finish_config(config: Mapping[str, Any], default_rope: Mapping[str, Any]) -> Config:
    """Derive the certainties of the normalized form from a config whose other keys are complete.

    Args:
        default_rope: the class's `rope_parameters`, flat or by layer type; what the config says goes before.
    """
    done = {key: value for key, value in config.items() if key not in _ROPE_KEYS}
    _check_num_layers(config)
    for key in _REQUIRED:
        if type(done.get(key)) is not int or done[key] < 1:
            raise ModelError(f"config.json has {key} = {done.get(key)!r}; it must be a whole number of at least 1")
    if done.get("use_bidirectional_attention"):
        raise ModelError("use_bidirectional_attention is set: this is an encoder, and only causal models can be served")
    done["num_key_value_heads"] = done.get("num_key_value_heads") or done["num_attention_heads"]
    done["head_dim"] = done.get("head_dim") or done["hidden_size"] // done["num_attention_heads"]
    done["hidden_act"] = done.get("hidden_activation") or done.get("hidden_act") or "silu"
    done["tie_word_embeddings"] = bool(done.get("tie_word_embeddings", False))
    if done["num_attention_heads"] % done["num_key_value_heads"]:
        raise ModelError(
            f"num_attention_heads = {done['num_attention_heads']} is not a multiple of num_key_value_heads ="
            f" {done['num_key_value_heads']}"
        )
    if not done.get("architectures"):
        if done.get("model_type") not in CAUSAL_LM_CLASSES:
            raise ModelError(f"config.json names no architecture for its model_type {done.get('model_type')!r}")
        done["architectures"] = [CAUSAL_LM_CLASSES[done["model_type"]]]
    _finish_layer_types(done)
    done["rope_parameters"] = _rope_parameters(config, default_rope, done)
    return done


def merge_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Config:
    """`--hf-overrides`: values replace the config's, key by key inside objects."""
    merged = dict(config)
    for key, value in overrides.items():
        old = merged.get(key)
        merged[key] = merge_overrides(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def context_length(config: Config) -> int:
    """Tokens a normalized config's model was made for: factor x original length where the rope method defines one."""
    rope, longest = config["rope_parameters"], int(config["max_position_embeddings"])
    if "rope_type" not in rope or rope["rope_type"] == "default":
        return longest
    stretched = int(rope["factor"] * rope.get("original_max_position_embeddings", longest))
    # Llama 3.1 states a maximum beyond factor x original; the others state the original or the product.
    return max(longest, stretched) if rope["rope_type"] in ("llama3", "longrope") else stretched


def _check_num_layers(config: Mapping[str, Any]) -> None:
    num_layers = config.get("num_hidden_layers")
    if isinstance(num_layers, int) and num_layers > MAX_LAYERS:
        raise ModelError(f"the model has {num_layers} layers (num_hidden_layers) but the limit is {MAX_LAYERS}")


def _finish_layer_types(done: Config) -> None:
    window, num_layers = done.get("sliding_window"), done["num_hidden_layers"]
    layer_types = done.get("layer_types") or ["sliding_attention" if window else "full_attention"] * num_layers
    unknown = set(layer_types) - set(LAYER_TYPES)
    if unknown or len(layer_types) != num_layers:
        raise ModelError(
            f"layer_types must be {num_layers} times full_attention or sliding_attention, not {len(layer_types)}"
            f" entries of {', '.join(sorted(set(layer_types)))}"
        )
    slides = "sliding_attention" in layer_types
    if slides and (type(window) is not int or window < 1):
        raise ModelError(f"layer_types names sliding_attention but sliding_window is {window!r}")
    done["layer_types"], done["sliding_window"] = list(layer_types), window if slides else None


def _rope_parameters(config: Mapping[str, Any], default_rope: Mapping[str, Any], done: Config) -> Config:
    """All layouts to the normalized one: old (`rope_theta` + `rope_scaling`), new flat, new by layer type."""
    given = {**_spelled(config, "rope_parameters"), **_spelled(config, "rope_scaling")}
    partial = config.get("partial_rotary_factor")
    shared = {} if partial is None else {"partial_rotary_factor": partial}
    if not any(kind in given or kind in default_rope for kind in LAYER_TYPES):
        return _one_rope({**default_rope, **shared, **_theta(config, "rope_theta"), **given}, done)
    flat = {key: value for key, value in given.items() if key not in LAYER_TYPES}
    by_layer_type = {}
    for kind, theta_key, own in zip(LAYER_TYPES, ("rope_theta", "rope_local_base_freq"), (flat, {}), strict=True):
        default = default_rope.get(kind, default_rope)
        stated = {**_theta(config, theta_key), **own, **_spelled(given, kind)}
        by_layer_type[kind] = _one_rope({**default, **shared, **stated}, done)
    return by_layer_type


def _spelled(config: Mapping[str, Any], key: str) -> Config:
    """The object under `key` without its nulls, and with `rope_type` where an old release wrote `type`."""
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ModelError(f"{key} is {value!r} but must be an object")
    stated = {name: entry for name, entry in value.items() if entry is not None}
    old_spelling = stated.pop("type", None)
    return stated if old_spelling is None else {"rope_type": old_spelling, **stated}


def _theta(config: Mapping[str, Any], key: str) -> Config:
    return {} if config.get(key) is None else {"rope_theta": config[key]}


def _one_rope(given: Mapping[str, Any], done: Config) -> Config:
    """Check one flat rope dict and derive what it leaves out."""
    spelled = given.get("rope_type", "default")
    rope_type = _ROPE_ALIASES.get(spelled, spelled)
    if rope_type not in ROPE_REQUIRED:
        raise ModelError(f"unknown rope_type {spelled!r}; known: {', '.join(ROPE_REQUIRED)}")
    missing = [key for key in ROPE_REQUIRED[rope_type] if key not in given]
    if missing:
        raise ModelError(f"rope_type {rope_type!r} needs {' and '.join(missing)}, which the rope parameters leave out")
    rope: Config = {"rope_type": rope_type, "rope_theta": _number(given, "rope_theta")}
    rotated = done["head_dim"]
    if given.get("partial_rotary_factor", 1.0) != 1.0:
        rope["partial_rotary_factor"] = _number(given, "partial_rotary_factor")
        rotated = int(rotated * rope["partial_rotary_factor"])
    if rope_type in _HAS_ORIGINAL_LENGTH:
        original = done.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
        rope["original_max_position_embeddings"] = int(original or done["max_position_embeddings"])
    if rope_type == "longrope" and "factor" not in given:
        rope["factor"] = done["max_position_embeddings"] / rope["original_max_position_embeddings"]
    elif rope_type != "default":
        rope["factor"] = _number(given, "factor")
    if rope_type == "llama3":
        rope |= {key: _number(given, key) for key in ("low_freq_factor", "high_freq_factor")}
    elif rope_type == "yarn":
        rope |= _yarn(given, rope["factor"])
    elif rope_type == "longrope":
        rope |= {key: _divisors(given, key, rotated // 2) for key in ("short_factor", "long_factor")}
        rope["attention_factor"] = _longrope_attention(given, rope)
    return rope


def _yarn(given: Mapping[str, Any], factor: float) -> Config:
    """YaRN, section 3.4 of https://arxiv.org/abs/2309.00071; `mscale` pairs as DeepSeek writes them."""

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if "attention_factor" in given:
        attention = _number(given, "attention_factor")
    elif given.get("mscale") and given.get("mscale_all_dim"):
        attention = temperature(given["mscale"]) / temperature(given["mscale_all_dim"])
    else:
        attention = temperature(1.0)
    return {
        "attention_factor": attention,
        "beta_fast": float(given.get("beta_fast") or 32),
        "beta_slow": float(given.get("beta_slow") or 1),
        "truncate": bool(given.get("truncate", True)),
    }


def _longrope_attention(given: Mapping[str, Any], rope: Config) -> float:
    """LongRoPE, https://arxiv.org/abs/2402.13753, as Phi-3 publishes it."""
    if "attention_factor" in given:
        return _number(given, "attention_factor")
    if rope["factor"] <= 1:
        return 1.0
    return math.sqrt(1 + math.log(rope["factor"]) / math.log(rope["original_max_position_embeddings"]))


def _number(given: Mapping[str, Any], key: str) -> float:
    value = given.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or math.isinf(value):
        raise ModelError(f"rope parameter {key} is {value!r} but must be a number above 0")
    return float(value)


def _divisors(given: Mapping[str, Any], key: str, count: int) -> list[float]:
    values = given[key]
    if not isinstance(values, list) or len(values) != count:
        raise ModelError(f"rope parameter {key} must be a list of {count} numbers, one per rotated pair")
    return [_number({key: value}, key) for value in values]
