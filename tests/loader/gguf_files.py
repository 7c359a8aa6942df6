"""Tiny GGUF files for tests: a random Transformers model written as its converter would, with the gguf package's own
tables of names. Also Transformers' own reading of a GGUF file, without the extra package its `from_pretrained` wants.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from octavo.loader.gguf_config import llama3_divisors

ARCHITECTURES = {
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
}
INTERLEAVED = ("llama", "granite", "smollm3")

END_OF_TURN = "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_gguf(
    folder: Path,
    path: Path,
    weight_type: str = "F32",
    *,
    tokenizer: bool = False,
    extra: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """Write a Transformers checkpoint folder as GGUF.

    Args:
        weight_type: of the matrices; vectors are F32. Rows must be whole blocks.
        tokenizer: add a byte-level vocabulary of 261 tokens (3 special, 256 bytes, 2 merged) and a chat template.
        extra: may add keys of its own.
    """
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    arch = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _add_config(writer, config)
    if tokenizer:
        _add_tokenizer(writer)
    if extra is not None:
        extra(writer)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, weight in tensors.items():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        _add_tensor(writer, gguf_name, _as_converted(name, weight.float(), config), weight_type)
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "llama3":
        add_rope_freqs(writer, llama3_rope_divisors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_rope_freqs(writer: gguf.GGUFWriter, divisors: list[float]) -> None:
    """The tensor that converters add for Llama 3.x."""
    writer.add_tensor("rope_freqs.weight", np.array(divisors, dtype=np.float32))


def llama3_rope_divisors(config: dict[str, Any]) -> list[float]:
    """Its values for a config."""
    rope, count = config["rope_parameters"], config["head_dim"] // 2
    freqs = [rope["rope_theta"] ** (-i / count) for i in range(count)]
    original = rope["original_max_position_embeddings"]
    return llama3_divisors(freqs, rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], original)


def transformers_state(path: Path) -> tuple[Any, dict[str, Tensor]]:
    """Config and float32 tensors of a GGUF file as Transformers reads them."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 (seconds to import)
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint  # noqa: PLC0415

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return config, load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]


def _add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """The keys converters write, from a config.json of the present Transformers."""
    rope = config["rope_parameters"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if rope.get("full_attention", rope)["rope_type"] in ("linear", "yarn"):
        scaling = rope.get("full_attention", rope)
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
        writer.add_rope_scaling_factor(scaling["factor"])
        if "original_max_position_embeddings" in scaling:
            writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    if "gemma" in config["model_type"]:
        writer.add_sliding_window(config["sliding_window"])
        if config.get("attn_logit_softcapping"):
            writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        if config.get("final_logit_softcapping"):
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["model_type"] == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    for role in ("bos", "eos", "pad"):
        if config.get(f"{role}_token_id") is not None:
            getattr(writer, f"add_{role}_token_id")(config[f"{role}_token_id"])


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    from transformers.convert_slow_tokenizer import bytes_to_unicode  # noqa: PLC0415 (seconds to import)

    special = ["<|endoftext|>", "<|im_start|>", END_OF_TURN]
    tokens = [*special, *bytes_to_unicode().values(), "Ġt", "he"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL] * len(special) + [gguf.TokenType.NORMAL] * (len(tokens) - len(special))
    )
    writer.add_token_merges(["Ġ t", "h e"])
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_tensor(writer: gguf.GGUFWriter, name: str, weight: Tensor, weight_type: str) -> None:
    kind = gguf.GGMLQuantizationType[weight_type if weight.dim() > 1 else "F32"]
    writer.add_tensor(name, gguf.quantize(weight.numpy(), kind), raw_dtype=kind)


def _as_converted(name: str, weight: Tensor, config: dict[str, Any]) -> Tensor:
    """What converters do to a tensor's values and row order."""
    if "gemma" in config["model_type"] and name.endswith("norm.weight"):
        return weight + 1
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(name.split(".")[-2])
    if heads is None or config["model_type"] not in INTERLEAVED:
        return weight
    pairs = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape).contiguous()
