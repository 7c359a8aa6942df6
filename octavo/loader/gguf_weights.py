"""Weights of a GGUF file under Transformers names and conventions, dequantized a few rows at a time.

What converters change on the way to GGUF is undone here: names, the order of rotated rows in q and k (Llama family),
and the 1 that is added to Gemma's norm weights.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from octavo.config import ModelSpec
from octavo.errors import ModelError
from octavo.files.gguf_header import GGUFTensorInfo, read_gguf_header
from octavo.kernels.cpu import native
from octavo.loader.gguf_config import ROPE_FREQS
from octavo.loader.mapped import MappedFile
from octavo.loader.weights import StoredWeight

PLAIN_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
CHUNK_ELEMENTS = 1 << 18
"""Elements dequantized at once: float32 intermediates stay in the cache, and a large tensor needs no large scratch."""

PERMUTED = ("llama", "granite", "smollm3")
"""`model_type`s whose converter interleaves the two halves of each rotated head."""

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
_GEMMA_LAYER = _LAYER | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def stored(spec: ModelSpec, dtype: torch.dtype) -> Iterator[StoredWeight]:
    """See `weights.stored_weights`."""
    model_type, header, file = spec.hf_config["model_type"], read_gguf_header(spec.path), MappedFile(spec.path)
    for info in header.tensors.values():
        if info.name == ROPE_FREQS:  # part of the config by now
            continue
        name = hf_name(info.name, model_type)
        if name is None:
            raise ModelError(f"{spec.path}: tensor {info.name!r} is not one that a {model_type!r} model has")
        if info.type_name not in PLAIN_TYPES:
            _decoder(spec.path, info)
        yield StoredWeight(name, info.shape, partial(_read, spec, file, info, name, dtype))


def _read(spec: ModelSpec, file: MappedFile, info: GGUFTensorInfo, name: str, dtype: torch.dtype) -> Tensor:
    """One tensor as Transformers has it."""
    config = spec.hf_config
    is_norm = name.endswith("norm.weight")
    weight = dequantize(spec.path, file, info, torch.float32 if is_norm else dtype)
    if is_norm and config["model_type"].startswith("gemma"):
        return weight - 1
    rotated_heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    heads = rotated_heads.get(name.split(".")[-2])
    if heads is None or config["model_type"] not in PERMUTED:
        return weight
    if weight.shape[0] != heads * config["head_dim"]:
        raise ModelError(
            f"{spec.path}: tensor {info.name!r} has {weight.shape[0]} rows, not {heads} x {config['head_dim']}"
        )
    return unpermute(weight, heads)


def hf_name(name: str, model_type: str) -> str | None:
    """Transformers' name of a GGUF tensor; None if the model has no such tensor."""
    if name in _TOP:
        return _TOP[name]
    match = _LAYER_NAME.fullmatch(name)
    table = _GEMMA_LAYER if model_type.startswith("gemma") else _LAYER
    if match is None or match[2] not in table:
        return None
    return f"model.layers.{match[1]}.{table[match[2]]}.{match[3]}"


def unpermute(weight: Tensor, num_heads: int) -> Tensor:
    """Rows (or bias entries) of each head from interleaved pairs [D/2, 2] back to two halves [2, D/2]."""
    halves = weight.view(num_heads, -1, 2, *weight.shape[1:]).transpose(1, 2)
    return halves.reshape(weight.shape)


def dequantize(path: str, file: MappedFile, info: GGUFTensorInfo, dtype: torch.dtype) -> Tensor:
    """One tensor in `dtype`: a view of the file where it already has it, else converted chunk by chunk.

    Raises:
        ModelError: a storage type that cannot be read.
    """
    if info.type_name in PLAIN_TYPES:
        return file.tensor(info.offset, info.num_bytes, PLAIN_TYPES[info.type_name], info.shape).to(dtype)
    decoder = _decoder(path, info)
    decoder.init_grid()
    blocks = file.read(info.offset, info.num_bytes).view(-1, decoder.type_size)
    weight = torch.empty(info.shape, dtype=dtype)
    flat, step = weight.view(-1, decoder.block_size), CHUNK_ELEMENTS // decoder.block_size
    scratch = torch.empty((0 if dtype is torch.float32 else min(step, len(flat)), decoder.block_size))
    for part, some_blocks in zip(flat.split(step), blocks.split(step), strict=True):
        values = part if dtype is torch.float32 else scratch[: len(part)]
        if not native.dequantize(info.type_name, values, some_blocks):
            values = torch.from_numpy(decoder.dequantize_blocks(some_blocks.numpy()))
        if values is not part:
            part.copy_(values)
    return weight


def _decoder(path: str, info: GGUFTensorInfo) -> Any:
    """The `gguf` package's decoder of a quantized type."""
    from gguf import quants  # noqa: PLC0415 (0.1 s, only if there is a quantized GGUF file)

    decoder = getattr(quants, info.type_name, None)
    if decoder is None:
        raise ModelError(f"{path}: tensor {info.name!r} has the type {info.type_name}, which cannot be read")
    return decoder
