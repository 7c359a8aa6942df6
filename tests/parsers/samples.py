"""What models of each format write. Every test of parsers goes through these; one entry makes a format tested."""

import json
from dataclasses import dataclass, field
from typing import Any

from octavo.parsers.calls import Tool
from octavo.parsers.events import (
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    ContentDelta,
    Event,
    ReasoningDelta,
)
from octavo.parsers.registry import REASONING_FORMATS, TOOL_FORMATS
from octavo.parsers.stream import AnswerReader

TOOLS = (
    Tool(
        "weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "note": {"type": ["string", "null"]},
                "options": {"type": "object"},
                "exact": {"type": "boolean"},
            },
        },
    ),
    Tool("now", {"type": "object", "properties": {}}),
)

HARD = {
    "city": 'Münster "中文😀"',
    "days": 3,
    "note": "a }{ </tool_call> ]['\\ \n\t end",
    "options": {"k": [1, {"z": None}]},
}
"""Arguments with all that confuses parsers."""


@dataclass
class Said:
    """An answer put together from its events."""

    reasoning: str = ""
    content: str = ""
    names: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    complete: list[bool] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Checks that calls come one after the other, each begun once and ended once."""
        match event:
            case ReasoningDelta(text):
                self.reasoning += text
            case ContentDelta(text):
                self.content += text
            case CallBegun(index, call_id, name):
                assert index == len(self.names) == len(self.complete)
                self.names.append(name)
                self.ids.append(call_id)
                self.arguments.append("")
            case ArgumentsDelta(index, text):
                assert index == len(self.names) - 1 == len(self.complete)
                self.arguments[index] += text
            case CallEnded(index, complete):
                assert index == len(self.names) - 1 == len(self.complete)
                self.complete.append(complete)

    @property
    def values(self) -> list[Any]:
        """The arguments of each call, parsed."""
        return [json.loads(text) for text in self.arguments]

    def without_ids(self) -> tuple[Any, ...]:
        """For comparing: ids are random."""
        return self.reasoning, self.content, self.names, self.arguments, self.complete


def read(
    text: str | list[str],
    tools: str | None,
    reasoning: str | None = None,
    *,
    inside: bool = False,
    functions: Any = TOOLS,
) -> Said:
    """Read an answer, whole or in the given pieces."""
    reader = AnswerReader(
        None if tools is None else TOOL_FORMATS.load(tools),
        None if reasoning is None else REASONING_FORMATS.load(reasoning),
        functions,
        inside=inside,
    )
    said = Said()
    for piece in [text] if isinstance(text, str) else text:
        for event in reader.feed(piece):
            said.add(event)
    for event in reader.finish():
        said.add(event)
    assert len(said.complete) == len(said.names)
    return said


# ---------------------------------------------------------------- how each format writes calls


def _json(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _object(name: str, arguments: dict[str, Any], key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {_json(arguments)}}}'


def _pythonic(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _tagged(head: str, key: str, tail: str, end: str) -> Any:
    def write(name: str, arguments: dict[str, Any]) -> str:
        inside = "".join(key.format(k) + _plain(v) + tail for k, v in arguments.items())
        return head.format(name) + inside + end

    return write


def _dsml(name: str, arguments: dict[str, Any]) -> str:
    inside = "".join(
        f'<｜DSML｜parameter name="{k}" string="{str(isinstance(v, str)).lower()}">{_plain(v)}</｜DSML｜parameter>\n'
        for k, v in arguments.items()
    )
    return f'<｜DSML｜invoke name="{name}">\n{inside}</｜DSML｜invoke>\n'


def _braced(quote: str) -> Any:
    def value(v: Any) -> str:
        if isinstance(v, str):
            return quote + v + quote
        if isinstance(v, dict):
            return "{" + ",".join(f"{k}:{value(inner)}" for k, inner in v.items()) + "}"
        if isinstance(v, list):
            return "[" + ",".join(map(value, v)) + "]"
        return _json(v)

    return lambda name, arguments: f"call:{name}{value(arguments)}"


@dataclass(frozen=True)
class Style:
    """How to write calls. `write` makes one; `between` joins several; `begin` and `end` stand around all."""

    write: Any
    begin: str = ""
    between: str = ""
    end: str = ""
    text_before: bool = True

    def answer(self, *calls: tuple[str, dict[str, Any]]) -> str:
        """The text of an answer that makes these calls."""
        return self.begin + self.between.join(self.write(*call) for call in calls) + self.end


_XML = _tagged("<function={}>\n", "<parameter={}>\n", "\n</parameter>\n", "</function>")

STYLES: dict[str, Style] = {
    "hermes": Style(lambda n, a: f"<tool_call>\n{_object(n, a)}\n</tool_call>", between="\n"),
    "llama3_json": Style(lambda n, a: _object(n, a, "parameters"), between="; ", text_before=False),
    "pythonic": Style(_pythonic, "[", ", ", "]", text_before=False),
    "llama4_pythonic": Style(_pythonic, "<|python_start|>[", ", ", "]<|python_end|>"),
    "mistral": Style(lambda n, a: f"[TOOL_CALLS]{n}[ARGS]{_json(a)}"),
    "mistral list": Style(_object, "[TOOL_CALLS] [", ", ", "]"),
    "granite": Style(_object, "<|tool_call|>[", ", ", "]"),
    "granite-20b-fc": Style(lambda n, a: f"<function_call> {_object(n, a)}", between="\n"),
    "deepseek_v3": Style(
        lambda n, a: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{_json(a)}\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": Style(
        lambda n, a: f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{_json(a)}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v32": Style(_dsml, "<｜DSML｜function_calls>\n", "", "</｜DSML｜function_calls>"),
    "deepseek_v4": Style(_dsml, "<｜DSML｜tool_calls>\n", "", "</｜DSML｜tool_calls>"),
    "qwen3_coder": Style(lambda n, a: f"<tool_call>\n{_XML(n, a)}\n</tool_call>", between="\n"),
    "seed_oss": Style(
        _tagged(
            "<seed:tool_call>\n<function={}>\n", "<parameter={}>", "</parameter>\n", "</function>\n</seed:tool_call>"
        )
    ),
    "glm45": Style(
        lambda n, a: _tagged(
            "<tool_call>{}\n", "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>"
        )(n, a),
        between="\n",
    ),
    "kimi_k2": Style(
        lambda n, a: f"<|tool_call_begin|>functions.{n}:0<|tool_call_argument_begin|>{_json(a)}<|tool_call_end|>",
        "<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>",
    ),
    "openai": Style(
        lambda n, a: f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{_json(a)}<|call|>",
        between="<|start|>assistant",
        text_before=False,
    ),
    "minimax_m2": Style(
        _tagged('<invoke name="{}">\n', '<parameter name="{}">', "</parameter>\n", "</invoke>\n"),
        "<minimax:tool_call>\n", "", "</minimax:tool_call>",
    ),
    "phi4_mini_json": Style(_object, "functools[", ", ", "]"),
    "internlm": Style(
        lambda n, a: f"<|action_start|><|plugin|>\n{_object(n, a, 'parameters')}<|action_end|>", between="\n"
    ),
    "functiongemma": Style(lambda n, a: f"<start_function_call>{_braced('<escape>')(n, a)}<end_function_call>"),
    "gemma4": Style(lambda n, a: "<|tool_call>" + _braced('<|"|>')(n, a) + "<tool_call|>"),
    "jamba": Style(_object, "<tool_calls>[\n", ",\n", "\n]</tool_calls>"),
    "lfm2": Style(_pythonic, "<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
    "olmo3": Style(_pythonic, "<function_calls>\n", "\n", "\n</function_calls>"),
    "longcat": Style(lambda n, a: f"<longcat_tool_call>\n{_object(n, a)}\n</longcat_tool_call>", between="\n"),
    "xlam": Style(_object, "[", ", ", "]", text_before=False),
    "generic": Style(_object, between="\n, ", text_before=False),
}  # fmt: skip
"""By format; a second word distinguishes dialects that one format reads."""


def format_of(style: str) -> str:
    """The format that reads a style."""
    return style.partition(" ")[0]
