"""From flat option values to the frozen sections of `octavo.config`. Knows names and bounds; no model, no device."""

import contextlib
import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

import msgspec

from octavo.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, ServerConfig, check_bounds
from octavo.errors import ConfigError
from octavo.logging import get_logger

logger = get_logger(__name__)

Section = TypeVar("Section")

IGNORED = {
    "swap_space": "preempted requests are computed again",
    "tokenizer_mode": "there is one tokenizer implementation",
    "use_v2_block_manager": "there is one block manager",
    "disable_custom_all_reduce": "there is one device",
    "num_scheduler_steps": "every step is scheduled",
    "async_scheduling": "one step is in flight at a time",
    "prefix_caching_hash_algo": "blocks are always hashed with sha256",
    "disable_hybrid_kv_cache_manager": "sliding-window layers always have pages of their own",
    "compilation_config": "nothing is compiled",
    "optimization_level": "nothing is compiled",
    "performance_mode": "nothing is compiled",
    "task": "every model is served for generation",
    "disable_log_requests": "requests are logged with --enable-log-requests only",
    "guided_decoding_backend": "there is one implementation of structured output",
    "structured_outputs_config": "there is one implementation of structured output, and each request says how it is",
    "calculate_kv_scales": "KV pages are not quantized",
    "override_attention_dtype": "attention computes in float32",
    "attention_backend": "the device has one attention implementation",
    "model_impl": "there is one implementation of each model",
    "numa_bind": "threads run on the CPUs that the process may use",
    "cudagraph_capture_sizes": "nothing is captured",
    "all2all_backend": "there is one device",
    "master_addr": "there is one machine",
    "master_port": "there is one machine",
    "mm_processor_cache_gb": "images and audio are not taken",
    "fingerprint_mode": "there is one fingerprint",
    "enable_prompt_tokens_details": "usage always has them",
    "enable_server_load_tracking": "/load always counts",
    "api_server_count": "there is one HTTP process",
    "disable_frontend_multiprocessing": "the engine always has a process of its own",
    "disable_async_output_proc": "one step is in flight at a time",
    "disable_cascade_attn": "attention reads shared pages once by itself",
    "disable_mm_preprocessor_cache": "images and audio are not taken",
    "language_model_only": "images and audio are not taken",
    "mm_encoder_tp_mode": "images and audio are not taken",
    "enable_flashinfer_autotune": "nothing is tuned at start",
    "moe_backend": "the device has one implementation",
    "cuda_graph_sizes": "nothing is captured",
    "max_seq_len_to_capture": "nothing is captured",
    "use_tqdm_on_load": "progress is shown where there is a terminal",
    "safetensors_load_strategy": "weights are read in one way",
    "max_parallel_loading_workers": "weights are read in one way",
    "tokenizer_pool_size": "there is one tokenizer",
    "preemption_mode": "preempted requests are computed again",
    "num_lookahead_slots": "pages are given as they are needed",
    "multi_step_stream_outputs": "tokens are sent as they come",
    "enable_reasoning": "--reasoning-parser says it",
    "enable_layerwise_nvtx_tracing": "there is one device",
    "data_parallel_backend": "there is one device",
    "data_parallel_size_local": "there is one device",
    "data_parallel_address": "there is one machine",
    "data_parallel_rpc_port": "there is one machine",
    "allowed_media_domains": "nothing that a request names is fetched by URL",
}
"""Names that other engines know and that have no meaning here, with the reason. Using one is a warning."""

MISSING = {
    "enable_lora": "LoRA adapters are",
    "lora_modules": "LoRA adapters are",
    "max_loras": "LoRA adapters are",
    "max_lora_rank": "LoRA adapters are",
    "max_cpu_loras": "LoRA adapters are",
    "fully_sharded_loras": "LoRA adapters are",
    "speculative_config": "speculative decoding is",
    "spec_method": "speculative decoding is",
    "cpu_offload_gb": "offloading weights is",
    "kv_offloading_size": "offloading KV pages is",
    "kv_offloading_backend": "offloading KV pages is",
    "kv_transfer_config": "KV transfer is",
    "ec_transfer_config": "encoder transfer is",
    "weight_transfer_config": "weight transfer is",
    "enable_sleep_mode": "sleep mode is",
    "limit_mm_per_prompt": "image and audio input is",
    "allowed_local_media_path": "image and audio input is",
    "trust_request_mm_kwargs": "image and audio input is",
    "pooler_config": "pooling is",
    "logits_processors": "custom logits processors are",
    "reasoning_parser_plugin": "a reasoning format from a file (an installed package's octavo.plugins adds one) is",
    "tool_parser_plugin": "a tool format from a file (an installed package's octavo.plugins adds one) is",
    "tool_server": "calling tools on the server is",
    "enable_expert_parallel": "expert parallelism is",
    "enable_eplb": "expert parallelism is",
    "enable_elastic_ep": "expert parallelism is",
    "enable_return_routed_experts": "reporting expert routing is",
    "enable_dbo": "dual-batch overlap is",
    "nnodes": "more than one machine is",
    "node_rank": "more than one machine is",
    "device_ids": "choosing among devices is",
    "max_num_active_seqs": "a limit beside --max-num-seqs is",
    "skip_tokenizer_init": "running without a tokenizer is",
    "enable_prompt_embeds": "prompt embeddings are",
    "runner": "pooling is",
    "convert": "pooling is",
    "kv_events_config": "KV events are",
    "collect_detailed_traces": "tracing inside a step is (spans of requests have queue, prefill and decode)",
    "logging_config": "more than --log-format and --log-level is (OCTAVO_LOG_CONFIG names a file)",
    "log_config_file": "a log configuration by flag is (the variable OCTAVO_LOG_CONFIG names the file)",
    "custom_histogram_buckets": "choosing histogram buckets is",
    "kv_cache_metrics": "metrics of single KV blocks are",
    "enable_ssl_refresh": "reading certificates again while serving is",
    "scheduler_cls": "a custom scheduler is",
    "worker_cls": "a custom worker is",
    "worker_extension_cls": "a custom worker is",
    "decode_context_parallel_size": "context parallelism is",
    "prefill_context_parallel_size": "context parallelism is",
    "data_parallel_hybrid_lb": "data parallelism is",
    "data_parallel_external_lb": "data parallelism is",
    "data_parallel_multi_port_external_lb": "data parallelism is",
    "headless": "an engine without its HTTP server is",
    "grpc": "gRPC is",
    "grpc_port": "gRPC is",
    "omni": "image and audio output is",
    "tokenizer_revision": "a revision for the tokenizer alone is (--tokenizer names a folder or file)",
    "code_revision": "code that comes with a checkpoint is",
    "rope_scaling": "changing the rope by its own flag is (--hf-overrides changes config.json)",
    "rope_theta": "changing the rope by its own flag is (--hf-overrides changes config.json)",
    "model_loader_extra_config": "loading by a plug-in is",
    "disable_sliding_window": "ignoring a model's sliding window is",
    "return_tokens_as_token_ids": "it for every request is (a request's own field is)",
    "enable_scale_out": "serving parts of a request is",
    "tokens_only": "serving parts of a request is",
}
"""Names of features that this version does not have. Asking for one is an error."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "runner": ("auto", "generate"),
    "convert": ("auto", "none"),
    "cpu_offload_gb": (0, "0"),
    "nnodes": (1, "1"),
    "node_rank": (0, "0"),
    "decode_context_parallel_size": (1, "1"),
    "prefill_context_parallel_size": (1, "1"),
    "data_parallel_size_local": (1, "1"),
    "api_server_count": (1, "1"),
    "tokenizer_mode": ("auto",),
    "model_impl": ("auto",),
    "collect_detailed_traces": ("none",),
    "limit_mm_per_prompt": ("{}",),
}
"""Values of names above that ask for nothing, and get no warning."""

SHORT_NAMES = {
    "cc": "compilation_config",
    "O": "optimization_level",
    "sc": "speculative_config",
    "asc": "api_server_count",
    "ep": "enable_expert_parallel",
    "dcp": "decode_context_parallel_size",
    "pcp": "prefill_context_parallel_size",
    "dpl": "data_parallel_size_local",
    "dpa": "data_parallel_address",
    "dpp": "data_parallel_rpc_port",
    "dpb": "data_parallel_backend",
    "n": "nnodes",
    "r": "node_rank",
}
"""One-dash forms of names above."""

_JSON_OPTIONS = ("hf_overrides", "override_generation_config", "default_chat_template_kwargs")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtKMGT]?)(iB)?")
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class Sections:
    """The engine's option sections, as given: nothing resolved yet."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    device: DeviceConfig


def option_names(section: type) -> list[str]:
    """Names of the options that a section declares."""
    return [f.name for f in fields(section) if f.metadata]


def make_sections(options: Mapping[str, object], *, warn: bool = True) -> Sections:
    """Engine options by flat name, e.g. `{"model": ..., "max_num_seqs": 8}`. None is the default.

    Args:
        warn: tell about names that have no effect.

    Raises:
        ConfigError: an unknown name (the nearest is suggested), a wrong type, a value out of bounds, a missing feature.
    """
    known = {
        name for section in (ModelConfig, CacheConfig, SchedulerConfig, DeviceConfig) for name in option_names(section)
    }
    chosen: dict[str, object] = {}
    for given, value in options.items():
        name = _canonical(given)
        if name in known:
            chosen[name] = value
        else:
            _handle_foreign(given, name, value, known, warn)
    model = make_section(ModelConfig, chosen)
    for name in _JSON_OPTIONS:
        parse_json_object(name, getattr(model, name))
    return Sections(
        model,
        make_section(CacheConfig, chosen),
        make_section(SchedulerConfig, chosen),
        make_section(DeviceConfig, chosen),
    )


def make_section(section: type[Section], options: Mapping[str, object]) -> Section:
    """Build one section from those of `options` that it declares.

    Raises:
        ConfigError: a wrong type or a value out of bounds.
    """
    values = {}
    for f in fields(section):  # type: ignore[arg-type]
        if f.metadata and options.get(f.name) is not None:
            values[f.name] = _plain(f.name, options[f.name], repeated=f.metadata["repeated"])
    try:
        made = msgspec.convert(values, type=section)
    except msgspec.ValidationError as err:
        message, _, where = str(err).partition(" - at `$.")
        name = where.rstrip("`").partition("[")[0]
        raise ConfigError(f"--{name.replace('_', '-')} is {values.get(name)!r}: {message}") from None
    check_bounds(made)
    return made


def parse_size(option: str, value: int | str) -> int:
    """Read a count such as 4096, "32k" (thousands) or "2G" (powers of 1024, as is "2GiB").

    Raises:
        ConfigError: not such a count; names the option.
    """
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        flag = "--" + option.replace("_", "-")
        raise ConfigError(f"{flag} is {value!r} but must be a whole number, or one with a unit as in 32k or 2G")
    number, unit, binary = match.groups()
    base = 1024 if unit.isupper() or binary else 1000
    return int(float(number) * base ** _POWER[unit.lower()]) if unit else int(float(number))


def parse_json_object(option: str, text: str | None) -> dict[str, object]:
    """Read an option whose value is a JSON object; None is an empty one.

    Raises:
        ConfigError: not a JSON object.
    """
    try:
        value = json.loads(text) if text else {}
    except ValueError as err:
        raise ConfigError(f"--{option.replace('_', '-')} is not JSON: {err}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"--{option.replace('_', '-')} must be a JSON object, got {text}")
    return value


def _canonical(name: str) -> str:
    """Field name of an option that may be spelled with dashes or by another long flag."""
    flag = "--" + name.replace("_", "-").lstrip("-")
    for section in (ModelConfig, CacheConfig, SchedulerConfig, DeviceConfig):
        for f in fields(section):
            if f.metadata and flag in f.metadata["aliases"]:
                return f.name
    return flag.removeprefix("--").replace("-", "_")


def _handle_foreign(given: str, name: str, value: object, known: set[str], warn: bool) -> None:
    name = name.partition(".")[0]  # --compilation-config.mode sets a part of --compilation-config
    name = SHORT_NAMES.get(name, name)
    if (value is None or value is False or value in NEUTRAL.get(name, ())) and (name in MISSING or name in IGNORED):
        return
    if name in IGNORED:
        if warn:
            logger.warning("option %s has no effect: %s", given, IGNORED[name])
        return
    if name in MISSING:
        raise ConfigError(f"option {given}: {MISSING[name]} not supported in this version; remove it")
    if name in option_names(ServerConfig):
        raise ConfigError(f"option {given} belongs to the HTTP server (`octavo serve`), not to the engine; remove it")
    close = difflib.get_close_matches(name, known | set(option_names(ServerConfig)), n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(sorted(known))}"
    raise ConfigError(f"unknown option {given}{hint}")


def _plain(name: str, value: object, *, repeated: bool) -> object:
    """What the Python API accepts in place of the plain type: a path, a dict for JSON, one string for many."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if name in _JSON_OPTIONS and isinstance(value, dict):
        return json.dumps(value)
    if repeated:
        return _many((value,) if isinstance(value, str) else value)
    return value


def _many(values: object) -> object:
    """Several values, which may also be written as one JSON list: `--allowed-origins '["*"]'`."""
    if isinstance(values, list | tuple) and len(values) == 1 and str(values[0]).startswith("["):
        with contextlib.suppress(ValueError):
            return json.loads(str(values[0]))
    return values
