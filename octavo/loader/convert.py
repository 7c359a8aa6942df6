"""Write any model that can be read as a Transformers folder: config, generation config, safetensors, tokenizer."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from octavo.config import ModelConfig, ModelSpec
from octavo.errors import ConfigError, ModelError
from octavo.loader.resolve import resolve_reference
from octavo.loader.safetensors_files import INDEX, SINGLE
from octavo.loader.weights import iterate_weights
from octavo.messages import Progress
from octavo.tokenizer.tokenizer import load_tokenizer

MAX_SHARD_BYTES = 2 << 30
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def convert(
    reference: str,
    out_dir: str | os.PathLike[str],
    *,
    dtype: str = "bfloat16",
    max_shard_bytes: int = MAX_SHARD_BYTES,
    progress: Progress | None = None,
) -> Path:
    """Write the model of a reference into a new folder that Transformers loads, with the same logits and token ids.

    Args:
        dtype: of the weights; quantized ones are written out. Norm weights stay float32.
        max_shard_bytes: a file grows no larger than this and one tensor; also the memory needed.

    Raises:
        ModelError: the reference cannot be read, or the folder cannot be written; nothing half-done stays behind.
        ConfigError: the folder is not empty, or the dtype is unknown.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} must be one of {', '.join(DTYPES)}")
    target = Path(out_dir)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not an empty folder; name another, or remove it")
    spec = resolve_reference(ModelConfig(model=reference), progress)
    staging = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        staging.mkdir(parents=True)
        _write_configs(spec, dtype, staging)
        load_tokenizer(spec.tokenizer_path).save(staging)
        _write_weights(spec, dtype, staging, max_shard_bytes, progress)
        staging.replace(target)
    except OSError as err:
        raise ModelError(f"{target} cannot be written: {err.strerror or err}") from err
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _write_configs(spec: ModelSpec, dtype: str, folder: Path) -> None:
    config = {key: value for key, value in spec.hf_config.items() if not key.startswith("_") and value is not None}
    config.pop("torch_dtype", None)
    _write_json(folder / "config.json", config | {"dtype": dtype})
    generation: dict[str, Any] = {"eos_token_id": list(spec.eos_token_ids), **spec.generation_config}
    for key in ("bos_token_id", "pad_token_id"):
        if spec.hf_config.get(key) is not None:
            generation[key] = spec.hf_config[key]
    if spec.generation_config.keys() & {"temperature", "top_p", "top_k", "min_p"}:
        generation["do_sample"] = True  # Transformers refuses sampling settings without it
    _write_json(folder / "generation_config.json", generation)


def _write_weights(spec: ModelSpec, dtype: str, folder: Path, max_shard_bytes: int, progress: Progress | None) -> None:
    """Write shards as they fill up, and name them once their number is known."""
    shards = [
        _write_shard(folder / f"shard-{index}", shard)
        for index, shard in enumerate(_shards(spec, DTYPES[dtype], max_shard_bytes, progress), start=1)
    ]
    if len(shards) == 1:
        (folder / "shard-1").replace(folder / SINGLE)
        return
    weight_map: dict[str, str] = {}
    for index, names in enumerate(shards, start=1):
        file_name = f"model-{index:05}-of-{len(shards):05}.safetensors"
        (folder / f"shard-{index}").replace(folder / file_name)
        weight_map |= dict.fromkeys(names, file_name)
    _write_json(folder / INDEX, {"metadata": {}, "weight_map": weight_map})


def _shards(
    spec: ModelSpec, dtype: torch.dtype, max_shard_bytes: int, progress: Progress | None
) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    shard_bytes = written_bytes = 0
    for name, weight in iterate_weights(spec, dtype):
        if shard and shard_bytes + weight.nbytes > max_shard_bytes:
            yield shard
            shard, shard_bytes = {}, 0
        shard[name] = weight.contiguous()
        shard_bytes += weight.nbytes
        written_bytes += weight.nbytes
        if progress is not None:
            progress(f"converting {spec.name}", written_bytes, 0)
    yield shard


def _write_shard(path: Path, shard: dict[str, Tensor]) -> list[str]:
    save_file(shard, path, metadata={"format": "pt"})
    path.chmod(0o644)  # the package keeps its files to their owner
    return list(shard)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
