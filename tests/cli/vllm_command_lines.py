"""Command lines of real vLLM deployments, as they stand in public repositories, and the names that its documentation
lists: what `octavo serve` has to start from unchanged, but for the program and the model.
"""

import shlex
from typing import NamedTuple


class CommandLine(NamedTuple):
    """One deployment.

    Attributes:
        source: where it is from.
        words: what follows `vllm serve` or the image's entry point; MODEL stands for the model.
        environ: variables that the same file sets.
        refused: what an error has to name, if there is one; empty if it starts.
        ignored: options that a warning has to name.
    """

    source: str
    words: list[str]
    environ: dict[str, str] = {}
    refused: str = ""
    ignored: tuple[str, ...] = ()


LINES = [
    CommandLine(
        "Kubernetes page of vLLM's documentation: a deployment of Mistral 7B",
        shlex.split("MODEL --trust-remote-code --enable-chunked-prefill --max_num_batched_tokens 1024"),
    ),
    CommandLine(
        "vllm-project/production-stack, helm/templates/deployment-vllm-multi.yaml with a plain modelSpec",
        shlex.split(
            "MODEL --host 0.0.0.0 --port 8000 --enable-chunked-prefill --no-enable-prefix-caching --max-model-len 1024 "
            "--dtype bfloat16 --tensor-parallel-size 1 --max-num-seqs 32 --gpu_memory_utilization 0.8"
        ),
        {"HF_HOME": "/tmp", "LMCACHE_LOG_LEVEL": "DEBUG", "PROMETHEUS_MULTIPROC_DIR": "/nowhere/at/all",
         "VLLM_API_KEY": "chart-key"},
    ),
    CommandLine(
        "a ServingRuntime of KServe (Red Hat OpenShift AI)",
        shlex.split("--port=8080 --model=MODEL --served-model-name=mistral"),
        {"VLLM_PORT": "8000", "HF_HOME": "/tmp/hf_home", "XDG_CACHE_HOME": "/tmp/.cache", "HOME": "/tmp"},
    ),
    CommandLine(
        "a systemd unit: vllm.service of a Mistral server",
        shlex.split("MODEL --host 0.0.0.0 --port 8000 --max-model-len 1024 --download-dir /tmp/hf"),
        {"HF_HUB_DISABLE_XET": "1", "HF_HUB_ENABLE_HF_TRANSFER": "0"},
    ),
    CommandLine(
        "docker-compose: a small multi-user deployment with statistics off",
        shlex.split(
            "MODEL --host 0.0.0.0 --port 8088 --gpu-memory-utilization 0.95 --max-num-seqs 256 --disable-log-requests "
            "--disable-log-stats --api-key compose-key"
        ),
        ignored=("disable_log_requests",),
    ),
    CommandLine(
        "a Dynamic Resource Allocation example of a Kubernetes guide",
        shlex.split(
            "--model=MODEL --block-size=32 --max-num-batched-tokens=2048 --max-num-seqs=256 "
            "--enable-chunked-prefill=true --enable-prefix-caching=true --gpu-memory-utilization=0.90 --swap-space=16 "
            "--disable-log-requests --port=8000"
        ),
        ignored=("swap_space", "disable_log_requests"),
    ),
    CommandLine(
        "a pod of the image vllm/vllm-openai on RunPod: docker_args",
        shlex.split(
            "--model MODEL --max-model-len 1024 --enforce-eager --gpu-memory-utilization 0.9 --tensor-parallel-size 1 "
            "--host 0.0.0.0 --port 8000"
        ),
        {"VLLM_USE_V1": "0"},
    ),
    CommandLine(
        "a start script of an RL environment: load tracking, no docs",
        shlex.split(
            "MODEL --disable-fastapi-docs --disable-log-requests --enable-server-load-tracking "
            "--gpu-memory-utilization 0.5 --host 127.0.0.1 --port 8000 --max-model-len 1024 --max-num-seqs 16"
        ),
        {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        ignored=("disable_log_requests", "enable_server_load_tracking"),
    ),
    CommandLine(
        "an evaluation harness's server process",
        shlex.split(
            "MODEL --task=generate --disable-log-requests --disable-uvicorn-access-log --max-model-len=1k "
            "--max-num-seqs=1000 --gpu-memory-utilization=0.95 --port=8000"
        ),
        ignored=("task", "disable_log_requests"),
    ),
    CommandLine(
        "a run script for a quantized model with bitsandbytes",
        shlex.split(
            "--model MODEL --quantization bitsandbytes --load-format bitsandbytes --gpu-memory-utilization 0.8 "
            "--port 8000 --max_model_len 2048"
        ),
        refused="--load-format",
    ),
    CommandLine(
        "a LoRA server of a fine-tuning guide",
        shlex.split("MODEL --enable-lora --lora-modules invoice=invoice-extractor-lora"),
        refused="enable_lora",
    ),
    CommandLine(
        "production-stack with the LMCache connector",
        shlex.split(
            "MODEL --host 0.0.0.0 --port 8000 --no-enable-prefix-caching --max-model-len 1024 --kv-transfer-config "
            """'{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'"""
        ),
        refused="kv_transfer_config",
    ),
    CommandLine(
        "a speculative run of Qwen3 30B",
        shlex.split(
            "--model MODEL --host 0.0.0.0 --port 8000 --dtype bfloat16 --max-model-len 1024 --max-num-batched-tokens "
            """2048 --speculative-config '{"method": "ngram", "num_speculative_tokens": 5}' """
            "--gpu-memory-utilization 0.90 --max-num-seqs 256 --enable-prefix-caching --disable-log-requests"
        ),
        refused="speculative_config",
    ),
    CommandLine(
        "two GPUs in a systemd unit",
        shlex.split("--host 127.0.0.1 --port 8001 --model MODEL --api-key k --tensor-parallel-size 2"),
        refused="--tensor-parallel-size is 2 but must be at most 1",
    ),
]  # fmt: skip

_NAMES = """
model served-model-name tokenizer tokenizer-mode revision trust-remote-code dtype quantization max-model-len runner
convert hf-overrides load-format download-dir model-impl generation-config override-generation-config seed
max-logprobs logprobs-mode enforce-eager skip-tokenizer-init enable-prompt-embeds gpu-memory-utilization
device-memory-utilization kv-cache-memory-bytes block-size kv-cache-dtype enable-prefix-caching
prefix-caching-hash-algo cpu-offload-gb kv-offloading-size kv-offloading-backend num-gpu-blocks-override max-num-seqs
max-num-batched-tokens max-num-active-seqs max-num-queued-reqs max-num-queued-tokens scheduling-policy
enable-chunked-prefill long-prefill-token-threshold async-scheduling stream-interval scheduler-cls
disable-hybrid-kv-cache-manager tensor-parallel-size pipeline-parallel-size data-parallel-size
decode-context-parallel-size prefill-context-parallel-size distributed-executor-backend nnodes node-rank master-addr
master-port data-parallel-size-local data-parallel-address data-parallel-rpc-port data-parallel-backend
data-parallel-hybrid-lb data-parallel-external-lb data-parallel-multi-port-external-lb all2all-backend
enable-expert-parallel enable-eplb enable-elastic-ep enable-dbo worker-cls worker-extension-cls device-ids numa-bind
chat-template chat-template-content-format default-chat-template-kwargs trust-request-chat-template
enable-auto-tool-choice tool-call-parser tool-parser-plugin tool-strict-level reasoning-parser reasoning-parser-plugin
response-role tool-server structured-outputs-config enable-lora lora-modules max-loras max-lora-rank max-cpu-loras
fully-sharded-loras speculative-config limit-mm-per-prompt allowed-media-domains allowed-local-media-path
mm-processor-cache-gb trust-request-mm-kwargs kv-transfer-config kv-events-config ec-transfer-config enable-sleep-mode
weight-transfer-config enable-return-routed-experts logits-processors host port uds api-key ssl-keyfile ssl-certfile
ssl-ca-certs ssl-cert-reqs root-path middleware allowed-origins disable-fastapi-docs enable-request-id-headers
sse-keep-alive-interval shutdown-timeout fingerprint-mode enable-log-requests enable-log-outputs max-log-len
disable-log-stats disable-access-log-for-endpoints uvicorn-log-level log-level logging-config.formatter
otlp-traces-endpoint collect-detailed-traces enable-prompt-tokens-details enable-per-request-metrics
enable-force-include-usage custom-histogram-buckets kv-cache-metrics enable-server-load-tracking compilation-config
optimization-level performance-mode cudagraph-capture-sizes attention-backend task swap-space disable-log-requests
guided-decoding-backend use-v2-block-manager num-scheduler-steps calculate-kv-scales override-attention-dtype headless
api-server-count grpc grpc-port omni config
"""
DOCUMENTED = _NAMES.split()
"""Flags of `vllm serve` in common use, removed ones that are still seen included."""
