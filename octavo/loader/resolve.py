"""From what the user typed to a `ModelSpec`: finds or fetches the files and reads their configs, no tensor.

A reference is, in this order: an existing folder, a .gguf file, a catalogue name, a hub id `org/name[:file.gguf]`.
"""

import json
from pathlib import Path
from typing import Any, Literal

from octavo.config import ModelConfig, ModelSpec
from octavo.errors import ConfigError, ModelError
from octavo.files.gguf_header import read_gguf_header
from octavo.loader import gguf_config
from octavo.loader.catalogue import CATALOGUE, pull
from octavo.loader.hf_config import Config, context_length, finish_config, merge_overrides, normalize_config
from octavo.loader.hub import fetch, parse_hub_reference
from octavo.loader.safetensors_files import StoredTensor, find_tensors, has_weights
from octavo.messages import Progress

_DTYPE_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def resolve_reference(config: ModelConfig, progress: Progress | None = None) -> ModelSpec:
    """Find or fetch a model and read what it is; its weight files' headers are checked on the way.

    Args:
        progress: told the bytes of a download.

    Raises:
        ModelError: the reference names nothing, or its files are damaged or of an unknown kind.
        ConfigError: options that do not fit the model.
    """
    path = locate(config, config.model, progress)
    tokenizer = path if config.tokenizer is None else locate(config, config.tokenizer, progress, weights=False)
    is_gguf = path.is_file()
    if config.load_format == ("safetensors" if is_gguf else "gguf"):
        raise ConfigError(f"--load-format {config.load_format} does not fit {path}; leave it out")
    read = _gguf_spec if is_gguf else _folder_spec
    return read(config, path, str(tokenizer))


def locate(config: ModelConfig, reference: str, progress: Progress | None = None, *, weights: bool = True) -> Path:
    """The folder or .gguf file of a reference, fetched if need be.

    Raises:
        ModelError: nothing has this name, or it cannot be fetched.
    """
    path = Path(reference).expanduser()
    if reference and path.is_dir():
        return _only_gguf(path) or path
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{reference} is a file, but not a .gguf one; for safetensors give the folder it is in")
        return path
    if reference in CATALOGUE:
        return pull(reference, progress)
    hub_reference = parse_hub_reference(reference)
    if hub_reference is None or (reference.endswith(".gguf") and hub_reference.file is None):
        raise ModelError(
            f"{reference!r} is no folder, .gguf file or hub id (org/name or org/name:file.gguf), nor one of the"
            f" catalogue: {', '.join(CATALOGUE)}"
        )
    fetched = fetch(
        hub_reference,
        revision=config.revision,
        download_dir=config.download_dir,
        weights=weights and config.load_format != "dummy",
        progress=progress,
    )
    return Path(fetched)


def _only_gguf(folder: Path) -> Path | None:
    """The .gguf file of a folder that holds one and is no Transformers folder."""
    if (folder / "config.json").is_file():
        return None
    found = sorted(folder.glob("*.gguf"))
    return found[0] if len(found) == 1 else None


def _gguf_spec(config: ModelConfig, path: Path, tokenizer: str) -> ModelSpec:
    header = read_gguf_header(path)
    num_parts = header.metadata.get("split.count", 1)
    if num_parts != 1:
        raise ModelError(f"{path} is one of {num_parts} parts; merge them with `llama-gguf-split --merge` first")
    derived = gguf_config.gguf_config(header)
    recommended = dict(CATALOGUE[config.model].sampling) if config.model in CATALOGUE else {}
    hf_config = finish_config(merge_overrides(derived, _overrides(config)), derived["rope_parameters"])
    return _spec(
        config,
        path,
        hf_config,
        stored_format="gguf",
        eos_token_ids=gguf_config.eos_token_ids(header),
        generation_config=recommended | gguf_config.generation_config(header),
        tokenizer=tokenizer,
        checkpoint_dtype=gguf_config.file_type(header),
    )


def _folder_spec(config: ModelConfig, folder: Path, tokenizer: str) -> ModelSpec:
    raw = _read_json(folder / "config.json")
    if raw is None:
        ggufs = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f"; give one of its files: {', '.join(ggufs)}" if ggufs else ""
        raise ModelError(f"{folder} has no config.json, so it is not a Transformers model{hint}")
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise ModelError(f"{folder} is quantized with {method!r}, which this version does not read; GGUF it does")
    try:
        hf_config = normalize_config(merge_overrides(raw, _overrides(config)))
    except ModelError as err:
        raise ModelError(f"{folder / 'config.json'}: {err}") from err
    stored = {} if config.load_format == "dummy" and not has_weights(folder) else find_tensors(folder)
    generation = _read_json(folder / "generation_config.json") or {}
    return _spec(
        config,
        folder,
        hf_config,
        stored_format="safetensors",
        eos_token_ids=_token_ids(generation.get("eos_token_id"), hf_config.get("eos_token_id")),
        generation_config=generation,
        tokenizer=tokenizer,
        checkpoint_dtype=_checkpoint_dtype(stored, hf_config),
    )


_GENERATION_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")


def _spec(
    config: ModelConfig,
    path: Path,
    hf_config: Config,
    *,
    stored_format: Literal["safetensors", "gguf"],
    eos_token_ids: tuple[int, ...],
    generation_config: dict[str, Any],
    tokenizer: str,
    checkpoint_dtype: str,
) -> ModelSpec:
    defaults = {key: generation_config[key] for key in _GENERATION_KEYS if generation_config.get(key) is not None}
    return ModelSpec(
        name=config.model,
        path=str(path),
        format="dummy" if config.load_format == "dummy" else stored_format,
        architecture=hf_config["architectures"][0],
        hf_config=hf_config,
        context_length=context_length(hf_config),
        vocab_size=hf_config["vocab_size"],
        eos_token_ids=eos_token_ids,
        generation_config=defaults,
        tokenizer_path=tokenizer,
        checkpoint_dtype=checkpoint_dtype,
    )


def _overrides(config: ModelConfig) -> dict[str, Any]:
    """`--hf-overrides` as an object."""
    if config.hf_overrides is None:
        return {}
    try:
        overrides = json.loads(config.hf_overrides)
    except ValueError as err:
        raise ConfigError(f"--hf-overrides is not valid JSON: {err}") from err
    if not isinstance(overrides, dict):
        raise ConfigError(f"--hf-overrides must be a JSON object, not {config.hf_overrides}")
    return overrides


def _read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None if there is no such file."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as err:
        raise ModelError(f"{path} is not valid JSON: {err}") from err
    if not isinstance(content, dict):
        raise ModelError(f"{path} is not a JSON object")
    return content


def _token_ids(*stated: int | list[int] | None) -> tuple[int, ...]:
    """All ids that any of the configs states, first come first."""
    flat = [token_id for ids in stated for token_id in (ids if isinstance(ids, list) else [ids])]
    return tuple(dict.fromkeys(token_id for token_id in flat if isinstance(token_id, int)))


def _checkpoint_dtype(stored: dict[str, StoredTensor], hf_config: Config) -> str:
    """The type that most bytes are stored in; without weights what the config says."""
    if not stored:
        return str(hf_config.get("dtype") or hf_config.get("torch_dtype") or "float32").removeprefix("torch.")
    num_bytes: dict[str, int] = {}
    for tensor in stored.values():
        num_bytes[tensor.info.dtype] = num_bytes.get(tensor.info.dtype, 0) + tensor.info.num_bytes
    most = max(num_bytes, key=lambda dtype: num_bytes[dtype])
    return _DTYPE_NAMES.get(most, most)
