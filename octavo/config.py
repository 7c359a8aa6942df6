"""Options, and what they resolve to. One field is one option: type, default, bound and docstring; CLI flags, help and
docs/configuration.md are generated from it. All frozen: resolving returns new objects (`engine/resolve.py`).
"""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from octavo.errors import ConfigError

DType = Literal["float32", "bfloat16", "float16"]
DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


def option(
    default: Any = None,
    *,
    ge: float | None = None,
    le: float | None = None,
    choices: tuple[str, ...] | None = None,
    aliases: tuple[str, ...] = (),
    metavar: str | None = None,
    repeated: bool = False,
) -> Any:
    """Declare an option field. The flag is `--` + name with dashes; a bool also gets a `--no-` form.

    Args:
        aliases: other flags that set it, with their dashes ("-tp").
        repeated: the flag takes one or more values; the field is a tuple.
    """
    metadata = {"ge": ge, "le": le, "choices": choices, "aliases": aliases, "metavar": metavar, "repeated": repeated}
    return field(default=default, metadata=metadata)


def check_bounds(section: Any) -> None:
    """Check every `option` of a frozen section.

    Raises:
        ConfigError: names the flag, the value and the limit.
    """
    for f in fields(section):
        value, meta = getattr(section, f.name), f.metadata
        if value is None or not meta:
            continue
        flag = "--" + f.name.replace("_", "-")
        if meta["ge"] is not None and value < meta["ge"]:
            raise ConfigError(f"{flag} is {value} but must be at least {meta['ge']:g}")
        if meta["le"] is not None and value > meta["le"]:
            raise ConfigError(f"{flag} is {value} but must be at most {meta['le']:g}")
        if meta["choices"] is not None and value not in meta["choices"]:
            raise ConfigError(f"{flag} is {value!r} but must be one of {', '.join(meta['choices'])}")


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how it is read."""

    model: str = option("smollm2-135m-instruct", metavar="REF")
    """A folder, a .gguf file, a hub id `org/name[:file.gguf]`, or a catalogue name (`octavo models`)."""
    served_model_name: tuple[str, ...] = option((), repeated=True)
    """Names that requests may use; the first is reported. Default: the model reference."""
    tokenizer: str | None = option(None)
    """Folder, .gguf file or hub id to take the tokenizer from. Default: the model itself."""
    revision: str | None = option(None)
    """Branch, tag or commit of a hub model."""
    download_dir: str | None = option(None)
    """Where hub downloads are kept. Default: the hub cache."""
    dtype: str = option("auto", choices=("auto", "float32", "float", "bfloat16", "float16", "half"))
    """Compute type. auto: bfloat16, or float32 where the device has no fast bfloat16."""
    load_format: str = option("auto", choices=("auto", "safetensors", "gguf", "dummy"))
    """How weights are read. dummy: random weights, for benchmarks."""
    quantization: str | None = option(None, aliases=("-q",))
    """Weight format. Read from the checkpoint; naming another one is an error."""
    max_model_len: int | str | None = option(None)
    """Most tokens of prompt plus answer, e.g. 4096 or 32k. Default: the model's; auto: as many as the KV pool holds."""
    hf_overrides: str | None = option(None, metavar="JSON")
    """JSON object merged into the model's config.json."""
    generation_config: str = option("auto", choices=("auto", "octavo", "vllm"))
    """auto: the model's own sampling defaults apply; octavo or vllm: they are ignored."""
    override_generation_config: str | None = option(None, metavar="JSON")
    """JSON object of sampling defaults that replace the model's."""
    chat_template: str | None = option(None)
    """File with a jinja chat template, or the template itself."""
    chat_template_content_format: Literal["auto", "string", "openai"] = option(
        "auto", choices=("auto", "string", "openai")
    )
    """How the template is given content: string, openai (a list of parts), or as it is found to read it."""
    default_chat_template_kwargs: str | None = option(None, metavar="JSON")
    """JSON object of template variables that apply where a request's `chat_template_kwargs` do not say otherwise."""
    seed: int = option(0)
    """Engine seed; a request without a seed takes one from it and its submission index."""
    max_logprobs: int = option(20, ge=-1)
    """Most `logprobs` / `top_logprobs` / `prompt_logprobs` a request may ask for; -1: no limit."""
    logprobs_mode: str = option(
        "raw_logprobs", choices=("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
    )
    """raw: before penalties, temperature and masks; processed: after them."""
    trust_remote_code: bool = option(False)
    """Allow code that comes with a checkpoint to run. Nothing in this version needs it."""


@dataclass(frozen=True)
class CacheConfig:
    """The KV pages."""

    block_size: int = option(16, ge=1, le=1024)
    """Tokens per page."""
    kv_cache_memory_bytes: int | str | None = option(None)
    """Size of the KV pool, e.g. 2147483648 or 2G. Default: a share of the free memory, see --gpu-memory-utilization."""
    num_gpu_blocks_override: int | None = option(None, ge=1)
    """Number of pages of each KV group, whatever the memory says."""
    gpu_memory_utilization: float | None = option(None, ge=0.01, le=1.0, aliases=("--device-memory-utilization",))
    """Share of the device's memory for weights and KV pool. Default: 0.9 on a GPU; on a CPU half of what is
    free, 4 GiB at most."""
    kv_cache_dtype: str = option("auto", choices=("auto", "float32", "bfloat16", "float16"))
    """Type of keys and values in pages. auto: the compute type."""
    enable_prefix_caching: bool = option(True)
    """Reuse the pages of a prompt's beginning."""
    num_blocks: tuple[int, ...] = ()
    """Resolved: pages per KV group."""


@dataclass(frozen=True)
class SchedulerConfig:
    """What shares a step."""

    max_num_seqs: int = option(64, ge=1, le=65536)
    """Most requests that may share one step. Higher raises throughput and latency."""
    max_num_batched_tokens: int | None = option(None, ge=1)
    """Token budget of one step, prefill and decode together. Default: 1024 on a CPU, 8192 on a GPU."""
    scheduling_policy: str = option("fcfs", choices=("fcfs", "priority"))
    """fcfs: in order of arrival; priority: lower `priority` first."""
    enable_chunked_prefill: bool = option(True)
    """Let a long prompt be computed over several steps beside running requests."""
    long_prefill_token_threshold: int = option(0, ge=0)
    """Most prompt tokens that one request computes in one step while others run; 0: a quarter of the budget, and what
    --memory-bound-tokens allows."""
    memory_bound_tokens: int | None = option(None, ge=1)
    """Tokens up to which a step takes about as long as for one, since it waits for the weights. While requests decode,
    each prompt that waits gives a step room for as many, or for as many as decode if those are more; prompts take
    it in their order. Default: 16 on a CPU, 256 on a GPU."""
    max_num_queued_reqs: int | None = option(None, ge=0)
    """More waiting requests than this are answered 503."""
    max_num_queued_tokens: int | None = option(None, ge=0)
    """More waiting prompt tokens than this are answered 503."""
    max_num_queued_reqs_per_key: int | None = option(None, ge=0)
    """More waiting requests of one API key than this are answered 429."""
    reserve_full_length: bool = option(False)
    """Allocate max_model_len per request, as engines without pages do. Only for `octavo bench` to compare with."""


@dataclass(frozen=True)
class DeviceConfig:
    """Where it runs."""

    device: str = option("auto", choices=("auto", "cpu", "cuda"))
    """auto: a GPU if there is one."""
    threads: int | None = option(None, ge=1)
    """CPU threads for the model. Default: the cores this process may use."""
    enforce_eager: bool = option(False)
    """Run a model op by op, in the order of its code, instead of replaying its plan. Slower, same answers."""
    tensor_parallel_size: int = option(1, ge=1, le=1, aliases=("-tp",))
    """Only 1 in this version."""
    pipeline_parallel_size: int = option(1, ge=1, le=1, aliases=("-pp",))
    """Only 1 in this version."""
    data_parallel_size: int = option(1, ge=1, le=1, aliases=("-dp",))
    """Only 1 in this version."""
    distributed_executor_backend: str = option("uni", choices=("uni", "mp", "ray"))
    """How workers are run. There is one worker, so mp and ray mean uni."""


@dataclass(frozen=True)
class ServerConfig:
    """The HTTP server."""

    host: str = option("127.0.0.1")
    """Address to listen on; 0.0.0.0 for every interface."""
    port: int = option(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    api_key: tuple[str, ...] = option((), repeated=True)
    """Keys a client may present; every route but the probes and the console's page then needs one. Also
    OCTAVO_API_KEY."""
    api_key_file: str | None = option(None, metavar="FILE")
    """Keys by their hashes, as `octavo key new` writes them, each with a name and scopes: infer, admin. Read again on
    SIGHUP."""
    metrics_without_key: bool = option(False)
    """Leave GET /metrics open where other routes need a key, for a scraper that has none."""
    uds: str | None = option(None, metavar="PATH")
    """Unix socket to listen on, instead of a port."""
    ssl_keyfile: str | None = option(None, metavar="FILE")
    """Key of the certificate, in PEM form; with --ssl-certfile the server speaks HTTPS."""
    ssl_certfile: str | None = option(None, metavar="FILE")
    """Certificate of the server and those that vouch for it, in PEM form."""
    ssl_ca_certs: str | None = option(None, metavar="FILE")
    """Certificates that vouch for clients, in PEM form; see --ssl-cert-reqs."""
    ssl_cert_reqs: int = option(0, ge=0, le=2)
    """Certificates of clients: 0 are not asked for, 1 are checked if there is one, 2 are required."""
    root_path: str = option("")
    """Prefix under which a proxy publishes the server; begins with a slash."""
    allowed_origins: tuple[str, ...] = option((), repeated=True)
    """Browser origins that may call the API (CORS)."""
    trust_request_chat_template: bool = option(False)
    """Run a `chat_template` that a request brings, in the sandbox and within its limits."""
    middleware: tuple[str, ...] = option((), repeated=True, metavar="MODULE.NAME")
    """ASGI middleware of your own: a class that takes the app, or a coroutine function of (request, call_next)."""
    response_role: str = option("assistant")
    """Role of chat answers."""
    tool_call_parser: str | None = option(None, metavar="NAME")
    """How the model writes tool calls (docs/tool-calling.md lists the names). Default: as its chat template says."""
    reasoning_parser: str | None = option(None, metavar="NAME")
    """How the model marks its thinking. Default: as its chat template says."""
    enable_auto_tool_choice: bool = option(True)
    """Read tool calls from answers to requests with tools. --no-enable-auto-tool-choice leaves them in the text, unless
    tool_choice asks for a call."""
    tool_strict_level: str = option("auto", choices=("auto", "function", "parameter"))
    """Which calls a grammar holds to the request's tools while the model may choose. auto: where a tool has strict:
    true, to the tools and to that tool's schema; function: always to the tools; parameter: to the schemas too."""
    stream_interval: int = option(1, ge=1)
    """Tokens between two events of a stream; more saves work for server and client. A request may say its own."""
    disable_console: bool = option(False)
    """No web page at /."""
    disable_fastapi_docs: bool = option(False)
    """No /docs and /openapi.json."""
    enable_tokenizer_info_endpoint: bool = option(False)
    """Serve GET /tokenizer_info: kind, special tokens and chat template of the tokenizer."""
    enable_request_id_headers: bool = option(False)
    """Return X-Request-Id on every answer."""
    strict_fields: bool = option(False)
    """Answer 400 to a request with a field that is not known here, instead of naming it in X-Octavo-Ignored-Fields."""
    enable_force_include_usage: bool = option(False)
    """Report usage in every stream, asked for or not."""
    enable_per_request_metrics: bool = option(False)
    """Report `metrics` (times of the request) in every answer, not only where the request says `return_metrics`."""
    sse_keep_alive_interval: float = option(0.0, ge=0)
    """Seconds of silence after which a stream carries a comment line, so that proxies keep it open; 0: never."""
    max_body_bytes: int = option(32 << 20, ge=1)
    """Largest request body; a longer one is answered 413."""
    files_dir: str | None = option(None, metavar="DIR")
    """Folder for uploaded files and batches, which then survive a restart. Default: a temporary one."""
    max_file_bytes: int = option(200 << 20, ge=1)
    """Largest uploaded file."""
    max_files_bytes: int = option(10 << 30, ge=1)
    """Size of all uploaded files together."""
    batch_concurrency: int | None = option(None, ge=1)
    """Most lines of batches that run at once, behind all other requests. Default: a quarter of --max-num-seqs."""
    response_store: str | None = option(None, metavar="FILE")
    """SQLite file for responses that clients may come back to, which then survive a restart. Default: memory."""
    response_store_size: int = option(1000, ge=1)
    """Most responses kept; the oldest go first."""
    response_store_ttl: int = option(30 * 24 * 3600, ge=1)
    """Seconds a response is kept."""
    request_timeout: float | None = option(None, ge=0.001)
    """Seconds after which a request ends with 504, or a stream with an error, waiting included. The header
    X-Request-Timeout asks for less."""
    drain_timeout: int = option(20, ge=0, aliases=("--shutdown-timeout",))
    """Seconds that running requests get to finish after SIGTERM; 0 aborts them."""
    log_level: str | None = option(None, choices=("debug", "info", "warning", "error", "critical"))
    """Log level of everything. Default: OCTAVO_LOG_LEVEL, or info."""
    log_format: str | None = option(None, choices=("text", "json"), aliases=("--logging-config.formatter",))
    """json: one object a line. Default: OCTAVO_LOG_FORMAT, or text."""
    restart_engine: bool = option(False)
    """Start a lost engine again, up to five times in ten minutes. Default: the server ends with exit code 1."""
    crash_dump_folder: str | None = option(None, metavar="DIR")
    """Where to write down the last five minutes when the engine is lost: lengths, parameters and times of requests, no
    text and no token ids."""
    enable_log_requests: bool = option(False)
    """Log the id, lengths and parameters of each request; with --log-level debug also its text."""
    enable_log_outputs: bool = option(False)
    """Log the text of each answer."""
    max_log_len: int | None = option(None, ge=0)
    """Most characters of a text in the log. Default: all."""
    disable_log_stats: bool = option(False)
    """No statistics line every 10 s."""
    uvicorn_log_level: str = option("warning", choices=("debug", "info", "warning", "error", "critical", "trace"))
    """Log level of the HTTP layer; from info on each answer is a line (the access log)."""
    disable_uvicorn_access_log: bool = option(False)
    """No access log, whatever the level."""
    disable_access_log_for_endpoints: str | None = option(None, metavar="PATHS")
    """Paths, parted by commas, whose answers are not in the access log, e.g. /health,/metrics."""
    otlp_traces_endpoint: str | None = option(None, metavar="URL")
    """OpenTelemetry collector (OTLP over HTTP) that gets a trace of each request. Needs the extra `octavo[otel]`."""
    metrics_prefix_vllm: bool = option(True)
    """Export the metrics under the vllm: names too, so that existing dashboards work."""
    watchdog_timeout: int = option(300, ge=1)
    """Seconds after which a step that still computes counts as hung. One that hangs without computing, and a process
    that is stopped, are noticed within 10 s whatever this is."""


@dataclass(frozen=True)
class KVGroupSpec:
    """Layers whose keys and values share block tables: the same kind of attention, heads and head size.

    Attributes:
        name: "full" or "sliding-<window>".
        num_layers: layers in the group; a page holds `block_size` tokens of all of them.
        window: tokens a query sees, itself included; None sees all.
    """

    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None

    def block_bytes(self, block_size: int, kv_dtype: str) -> int:
        """Bytes of one page of this group, keys and values of all its layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * block_size * DTYPE_BYTES[kv_dtype]


@dataclass(frozen=True)
class ModelSpec:
    """What resolving a model reference finds out, without loading a tensor (`loader/resolve.py`).

    Attributes:
        name: the reference as the user gave it.
        path: folder or .gguf file on this machine.
        format: how the weights are stored; "dummy" makes random ones (--load-format dummy).
        architecture: key of `models.MODELS`, e.g. "LlamaForCausalLM".
        hf_config: config.json of the *text* model with every default filled in (from GGUF: the same keys, derived).
        context_length: tokens the model was made for, rope scaling included.
        eos_token_ids: from generation_config, config or GGUF metadata.
        generation_config: sampling defaults of the model (temperature, top_p, top_k, min_p, repetition_penalty,
            max_new_tokens), empty if there are none.
        tokenizer_path: folder or .gguf file.
        checkpoint_dtype: dtype of the stored weights ("bfloat16"), or a GGUF type name ("Q4_1").
    """

    name: str
    path: str
    format: Literal["safetensors", "gguf", "dummy"]
    architecture: str
    hf_config: dict[str, Any]
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    generation_config: dict[str, Any]
    tokenizer_path: str
    checkpoint_dtype: str


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine is built from, made by `engine/resolve.py`.

    `cache.num_blocks` is set later, once the worker has loaded the model and knows how much memory is left.
    """

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    device: DeviceConfig
    spec: ModelSpec
    dtype: DType
    max_model_len: int
    served_model_name: str

    @property
    def kv_dtype(self) -> str:
        """Type of keys and values in pages."""
        return self.dtype if self.cache.kv_cache_dtype == "auto" else self.cache.kv_cache_dtype

    @property
    def token_budget(self) -> int:
        """Tokens one step may compute."""
        assert self.scheduler.max_num_batched_tokens is not None  # filled by resolve
        return self.scheduler.max_num_batched_tokens
