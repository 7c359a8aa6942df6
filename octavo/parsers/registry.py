"""Names of formats, as `--tool-call-parser` and `--reasoning-parser` take them, and which one a chat template speaks.

The names are vLLM's. A plug-in adds its own with `TOOL_FORMATS.add("foo", "package.module:FOO")`.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from octavo.parsers.formats import ReasoningFormat, ToolFormat
from octavo.registry import Registry

GENERIC = "generic"
"""The format of models whose template names no other."""

_AT = "octavo.parsers.formats:"

TOOL_FORMATS: Registry[ToolFormat] = Registry(
    "tool call format",
    {
        "hermes": _AT + "HERMES",
        "qwen": _AT + "HERMES",
        "granite4": _AT + "HERMES",
        "llama3_json": _AT + "LLAMA3_JSON",
        "llama4_json": _AT + "LLAMA3_JSON",
        "llama4_pythonic": _AT + "LLAMA4_PYTHONIC",
        "pythonic": _AT + "PYTHONIC",
        "mistral": _AT + "MISTRAL",
        "granite": _AT + "GRANITE",
        "granite-20b-fc": _AT + "GRANITE_20B",
        "deepseek_v3": _AT + "DEEPSEEK_V3",
        "deepseek_v31": _AT + "DEEPSEEK_V31",
        "deepseek_v32": _AT + "DEEPSEEK_V32",
        "deepseek_v4": _AT + "DEEPSEEK_V4",
        "qwen3_coder": _AT + "QWEN3_CODER",
        "qwen3_xml": _AT + "QWEN3_CODER",
        "glm45": _AT + "GLM45",
        "glm47": _AT + "GLM45",
        "kimi_k2": _AT + "KIMI_K2",
        "openai": _AT + "HARMONY",
        "minimax_m2": _AT + "MINIMAX_M2",
        "phi4_mini_json": _AT + "PHI4_MINI",
        "internlm": _AT + "INTERNLM",
        "functiongemma": _AT + "FUNCTIONGEMMA",
        "gemma4": _AT + "GEMMA4",
        "jamba": _AT + "JAMBA",
        "hunyuan_a13b": _AT + "JAMBA",
        "xlam": _AT + "XLAM",
        "lfm2": _AT + "LFM2",
        "olmo3": _AT + "OLMO3",
        "seed_oss": _AT + "SEED_OSS",
        "longcat": _AT + "LONGCAT",
        GENERIC: _AT + "GENERIC",
    },
)

REASONING_FORMATS: Registry[ReasoningFormat] = Registry(
    "reasoning format",
    {
        "deepseek_r1": _AT + "DEEPSEEK_R1",
        "qwen3": _AT + "QWEN3",
        "deepseek_v3": _AT + "QWEN3",
        "glm45": _AT + "QWEN3",
        "glm47": _AT + "QWEN3",
        "minimax_m2": _AT + "QWEN3",
        "olmo3": _AT + "QWEN3",
        "granite": _AT + "GRANITE_THINK",
        "openai_gptoss": _AT + "HARMONY_THINK",
        "mistral": _AT + "MISTRAL_THINK",
        "kimi_k2": _AT + "KIMI_K2_THINKING",
        "kimi_vl": _AT + "KIMI_VL",
        "gemma4": _AT + "GEMMA4_THINK",
        "seed_oss": _AT + "SEED_THINK",
    },
)


class _Named(Protocol):
    @property
    def template(self) -> tuple[tuple[str, ...], ...]: ...


F = TypeVar("F", bound=_Named)


def pick_tool_format(templates: Iterable[str]) -> str:
    """Name of the format whose markers a model's chat templates hold; the generic one if they hold none."""
    return _pick(TOOL_FORMATS, templates) or GENERIC


def pick_reasoning_format(templates: Iterable[str]) -> str | None:
    """The same for reasoning; None if the templates know nothing of it."""
    return _pick(REASONING_FORMATS, templates)


def _pick(registry: Registry[F], templates: Iterable[str]) -> str | None:
    """Of all formats whose markers are there, the one that asks for most: it is the least likely to fit by chance."""
    text = "\n".join(templates)
    best, length = None, 0
    for name in registry:
        for group in registry.load(name).template:
            size = sum(map(len, group))
            if size > length and all(marker in text for marker in group):
                best, length = name, size
    return best
