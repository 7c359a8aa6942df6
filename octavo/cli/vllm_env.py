"""Environment variables of vLLM that are no other name of one of ours (`octavo.envs`): those that stand for a flag, and
those that a user would miss. All others change nothing here and are ignored.
"""

from collections.abc import Mapping
from typing import NamedTuple

from octavo.logging import get_logger

logger = get_logger(__name__)


class Flag(NamedTuple):
    """The option that a variable stands for, and how its text becomes the option's."""

    option: str
    form: str = "{}"


STANDS_FOR = {
    "VLLM_CPU_KVCACHE_SPACE": Flag("kv_cache_memory_bytes", "{}GiB"),
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": Flag("watchdog_timeout"),
}
"""Read by `octavo serve`, unless the flag is given."""

WITHOUT_EFFECT = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "LoRA adapters are not supported in this version",
    "VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT": "a template may run for 10 s",
    "VLLM_CONFIGURE_LOGGING": "log lines go to stderr, or where OCTAVO_LOG_CONFIG says",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "say --threads",
    "VLLM_CPU_OMP_THREADS_BIND": "threads run on the CPUs that the process may use (taskset, cpuset); say --threads",
    "VLLM_ENABLE_COHERE_API": "there is no Cohere route",
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "the server ends with its engine, or starts a new one",
    "VLLM_PLUGINS": "plug-ins are entry points of the group octavo.plugins",
    "VLLM_SERVER_DEV_MODE": "no route is hidden; administration needs a key instead",
    "VLLM_SKIP_MODEL_NAME_VALIDATION": "--served-model-name takes as many names as you like",
    "VLLM_USE_MODELSCOPE": "models come from the Hugging Face hub",
}
"""Variables whose absence a user would notice, with what to do. Set to something, they are a warning."""

ASKS_FOR_NOTHING = {"", "0", "false", "auto", "nobind"}


def flags_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Options by variable."""
    return {
        flag.option: flag.form.format(environ[name].strip())
        for name, flag in STANDS_FOR.items()
        if environ.get(name, "").strip() not in ("", "0")
    }


def warn_of_missed(environ: Mapping[str, str]) -> None:
    """One warning line for each variable that is set and that we do not follow."""
    for name, advice in WITHOUT_EFFECT.items():
        value = environ.get(name)
        if value is None:
            continue
        is_off = value.strip().lower() in ASKS_FOR_NOTHING
        if is_off if name != "VLLM_CONFIGURE_LOGGING" else not is_off:  # this one is on by default
            continue
        logger.warning("environment variable %s has no effect: %s", name, advice)
