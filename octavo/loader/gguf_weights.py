"""Weights of a GGUF file under Transformers names and conventions, dequantized some rows at a time.

What converters change on the way to GGUF is undone here: names, the order of rotated rows in q and k (Llama family),
and the 1 that is added to Gemma's norm weights.
"""

import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from octavo.config import ModelSpec
from octavo.errors import ModelError
from octavo.files.ggml_types import BLOCK_TYPES
from octavo.files.gguf_header import GGUFTensorInfo, read_gguf_header
from octavo.kernels.cpu import native
from octavo.loader.gguf_config import ROPE_FREQS
from octavo.loader.mapped import MappedFile
from octavo.loader.weights import StoredWeight, rows_at_once

PLAIN_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

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
    model_type, file = spec.hf_config["model_type"], MappedFile(spec.path)
    for info in read_gguf_header(spec.path, vocabulary=False).tensors.values():
        if info.name == ROPE_FREQS:  # part of the config by now
            continue
        name = hf_name(info.name, model_type)
        if name is None:
            raise ModelError(f"{spec.path}: tensor {info.name!r} is not one that a {model_type!r} model has")
        if info.type_name not in PLAIN_TYPES and not native.can_dequantize(info.type_name):
            _decoder(spec.path, info)
        yield StoredWeight(name, info.shape, partial(_read, spec, file, info, name))


def _read(spec: ModelSpec, file: MappedFile, info: GGUFTensorInfo, name: str) -> Iterator[Tensor]:
    """One tensor as Transformers has it, part by part."""
    config, rows = spec.hf_config, info.shape[0]
    rotated_heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    heads = rotated_heads.get(name.split(".")[-2]) if config["model_type"] in PERMUTED else None
    if heads is not None and rows != heads * config["head_dim"]:
        raise ModelError(f"{spec.path}: tensor {info.name!r} has {rows} rows, not {heads} x {config['head_dim']}")
    adds_one = name.endswith("norm.weight") and config["model_type"].startswith("gemma")
    for part in dequantize(spec.path, file, info, multiple=1 if heads is None else config["head_dim"]):
        if heads is not None:
            yield unpermute(part, len(part) // config["head_dim"])
        else:
            yield part.float() - 1 if adds_one else part


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


def dequantize(path: str, file: MappedFile, info: GGUFTensorInfo, multiple: int = 1) -> Iterator[Tensor]:
    """The rows of one tensor, by parts of a multiple of `multiple`: views of the file if it is of a plain type, else
    float32 values that share one scratch.

    Raises:
        ModelError: a storage type that cannot be read.
    """
    if info.type_name in PLAIN_TYPES:
        whole = file.tensor(info.offset, info.num_bytes, PLAIN_TYPES[info.type_name], info.shape)
        yield from whole.split(rows_at_once(math.prod(info.shape[1:]), multiple))
        return
    decode = None if native.can_dequantize(info.type_name) else _decoder(path, info)
    num_elements, columns = math.prod(info.shape), info.shape[-1]
    block_bytes = next(t.num_bytes for t in BLOCK_TYPES.values() if t.name == info.type_name)
    blocks = file.read(info.offset, info.num_bytes).view(num_elements // columns, -1)  # [rows, bytes]
    scratch = torch.empty((min(len(blocks), rows_at_once(columns, multiple)), columns))
    for some in blocks.split(len(scratch)):
        rows = scratch[: len(some)]
        if decode is None:
            native.dequantize(info.type_name, rows, some.view(-1, block_bytes))
        else:
            rows.copy_(torch.from_numpy(decode(some.numpy())))
        yield rows.view(-1, *info.shape[1:])


def _decoder(path: str, info: GGUFTensorInfo) -> Any:
    """What the `gguf` package decodes a quantized type with."""
    from gguf import quants  # noqa: PLC0415 (0.1 s, only for a type that native code does not know)

    decoder = getattr(quants, info.type_name, None)
    if decoder is None:
        raise ModelError(f"{path}: tensor {info.name!r} has the type {info.type_name}, which cannot be read")
    return decoder.dequantize
