"""How model families write tool calls and reasoning: data. A family that needs more has a layout in a file of its own.

`registry.py` gives them their public names; `docs/add-a-tool-format.md` says how to add one.
"""

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, replace

from octavo.parsers import harmony
from octavo.parsers.braces import BracedCalls
from octavo.parsers.calls import Layout, random_id
from octavo.parsers.json_calls import JsonCalls, NamedJson
from octavo.parsers.parameters import TaggedParameters
from octavo.parsers.pythonic import PythonicCalls


@dataclass(frozen=True)
class ToolFormat:
    """How a family writes calls.

    Args:
        layout: how a call is written between its markers.
        call: markers around a call, with the blanks that the family writes; the reader does not insist on those. An
            empty second one: nothing stands behind it.
        section: markers around all calls of an answer, if there are such.
        between: stands between two calls.
        template: strings that a chat template of this format holds; all of one of these groups. Empty: never picked.
        also: other pairs of markers around a call, from older or careless models.
        bare: a call may stand at the beginning of an answer without any marker, if it is of a known tool.
        make_id: ids in the form that the family's template wants back.
        whole_answer: the format is one of channels; `harmony.py` reads reasoning and text too.
    """

    layout: Layout
    call: tuple[str, str] = ("", "")
    section: tuple[str, str] = ("", "")
    between: str = ""
    template: tuple[tuple[str, ...], ...] = ()
    also: tuple[tuple[str, str], ...] = ()
    bare: bool = False
    make_id: Callable[[str, int], str] = random_id
    whole_answer: bool = False

    @property
    def openers(self) -> tuple[str, ...]:
        """Every marker that a call or a section begins with."""
        return tuple(pair[0] for pair in self.pairs if pair[0])

    @property
    def opener(self) -> str:
        """The marker that the family begins its calls with; "" if there is none."""
        return self.section[0].strip() or self.call[0].strip()

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All markers in pairs, without their blanks: of the section, of a call, and others."""
        own = [(begin.strip(), end.strip()) for begin, end in (self.section, self.call)]
        return (*own, *self.also)

    @property
    def markers(self) -> tuple[str, ...]:
        """Every marker; those that are special tokens must stay in the text."""
        if self.whole_answer:
            return harmony.MARKERS
        texts = (*(text for pair in self.pairs for text in pair), *layout_markers(self.layout))
        return tuple(dict.fromkeys(text for text in texts if text))


@dataclass(frozen=True)
class ReasoningFormat:
    """How a family marks its thinking.

    Args:
        opens: what begins it, if the prompt does not.
        closes: what ends it.
        begins_inside: an answer begins with thinking even if neither it nor the prompt says so.
        label: a line behind the opening that is no thinking.
        answer_begins: what stands before the text, where that has a channel of its own.
        ends_at_call: a tool call ends it too.
        template: as in `ToolFormat`.
        whole_answer: as in `ToolFormat`.
    """

    opens: str
    closes: str
    begins_inside: bool = False
    label: str = ""
    answer_begins: str = ""
    ends_at_call: bool = False
    template: tuple[tuple[str, ...], ...] = ()
    whole_answer: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """As in `ToolFormat`."""
        return harmony.MARKERS if self.whole_answer else (self.opens, self.closes)


def layout_markers(layout: Layout) -> tuple[str, ...]:
    """Markers inside a call."""
    match layout:
        case NamedJson():
            return (*layout.name_ends, layout.id_begins, layout.prefix, layout.suffix)
        case BracedCalls():
            return (layout.quote,)
        case TaggedParameters():
            return (*layout.key[1].split(" "), layout.key[0], layout.value_end, layout.end, *layout.name)
    return ()


# ---------------------------------------------------------------- ids


def mistral_id(name: str, index: int) -> str:
    """Nine letters and digits; Mistral's templates refuse all else."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


def kimi_id(name: str, index: int) -> str:
    """Kimi's ids hold the name, and its template wants them so."""
    return f"functions.{name}:{index}"


# ---------------------------------------------------------------- JSON objects between markers

HERMES = ToolFormat(JsonCalls(), call=("<tool_call>\n", "\n</tool_call>"), between="\n", template=(("<tool_call>",),))
LLAMA3_JSON = ToolFormat(
    JsonCalls("parameters"),
    between="; ",
    also=(("<|python_tag|>", ""),),
    bare=True,
    template=(("<|python_tag|>", '"parameters"'), ("Environment: ipython", '"parameters"')),
)
GRANITE = ToolFormat(
    JsonCalls(listed=True),
    section=("<|tool_call|>", ""),
    also=(("<tool_call>", "</tool_call>"),),
    template=(("<|tool_call|>",),),
)
GRANITE_20B = ToolFormat(JsonCalls(), call=("<function_call> ", ""), between="\n", template=(("<function_call>",),))
PHI4_MINI = ToolFormat(
    JsonCalls(listed=True), section=("<|tool_call|>", "<|/tool_call|>"), also=(("functools", ""),),
    template=(("<|tool_call|>", "<|/tool_call|>"), ("<|tool|>", "<|/tool|>"), ("functools",)),
)  # fmt: skip
INTERNLM = ToolFormat(
    JsonCalls("parameters"),
    call=("<|action_start|><|plugin|>\n", "<|action_end|>"),
    also=(("<|action_start|> <|plugin|>", "<|action_end|>"),),
    template=(("<|action_start|>",),),
)
JAMBA = ToolFormat(JsonCalls(listed=True), section=("<tool_calls>", "</tool_calls>"), template=(("<tool_calls>",),))
LONGCAT = ToolFormat(
    JsonCalls(),
    call=("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
    between="\n",
    template=(("<longcat_tool_call>",),),
)
GENERIC = ToolFormat(
    JsonCalls(),
    between="; ",
    also=(("<tool_call>", "</tool_call>"), ("```json\n", "```"), ("```tool_call\n", "```")),
    bare=True,
)
XLAM = ToolFormat(
    JsonCalls(listed=True),
    also=(("[TOOL_CALLS]", ""), ("<tool_call>", "</tool_call>"), ("```json\n", "```"), ("```\n", "```")),
    bare=True,
    template=(("Salesforce xLAM",),),
)

# ---------------------------------------------------------------- a name, then JSON arguments

MISTRAL = ToolFormat(
    NamedJson(("[ARGS]",), id_begins="[CALL_ID]", or_json=True),
    call=("[TOOL_CALLS]", ""),
    template=(("[TOOL_CALLS]",),),
    make_id=mistral_id,
)
DEEPSEEK_V3 = ToolFormat(
    NamedJson(("\n```json\n",), prefix="function<｜tool▁sep｜>", suffix="\n```"),
    between="\n",
    call=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    template=(("<｜tool▁call▁begin｜>", "```json"),),
)
DEEPSEEK_V31 = ToolFormat(
    NamedJson(("<｜tool▁sep｜>",)),
    call=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    template=(("<｜tool▁call▁begin｜>",),),
)
KIMI_K2 = ToolFormat(
    NamedJson(("<|tool_call_argument_begin|>",), prefix="functions.", numbered=True),
    call=("<|tool_call_begin|>", "<|tool_call_end|>"),
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    template=(("<|tool_call_argument_begin|>",),),
    make_id=kimi_id,
)

# ---------------------------------------------------------------- one tag per argument

QWEN3_CODER = ToolFormat(
    TaggedParameters(("<function=", ">"), ("<parameter=", ">"), "</parameter>", "</function>", newlines=True),
    call=("<tool_call>\n", "\n</tool_call>"),
    between="\n",
    template=(("<tool_call>", "<function="),),
)
SEED_OSS = ToolFormat(
    TaggedParameters(("<function=", ">"), ("<parameter=", ">"), "</parameter>", "</function>"),
    call=("<seed:tool_call>\n", "\n</seed:tool_call>"),
    template=(("<seed:tool_call>",),),
)
MINIMAX_M2 = ToolFormat(
    TaggedParameters(('<invoke name="', '">'), ('<parameter name="', '"'), "</parameter>", "</invoke>"),
    section=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
    between="\n",
    template=(("<minimax:tool_call>",),),
)
DEEPSEEK_V32 = ToolFormat(
    TaggedParameters(
        ('<｜DSML｜invoke name="', '">'),
        ('<｜DSML｜parameter name="', '"'),
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",
        typed=True,
    ),
    section=("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"),
    between="\n",
    template=(("｜DSML｜",), ("｜DSML｜", "function_calls")),
)
DEEPSEEK_V4 = replace(
    DEEPSEEK_V32,
    section=("<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>"),
    template=(("｜DSML｜", "tool_calls>"),),
)
GLM45 = ToolFormat(
    TaggedParameters(("", ""), ("<arg_key>", "</arg_key> <arg_value>"), "</arg_value>", ""),
    call=("<tool_call>", "</tool_call>"),
    between="\n",
    template=(("<tool_call>", "<arg_key>"),),
)

# ---------------------------------------------------------------- Python, and notations of their own

PYTHONIC = ToolFormat(PythonicCalls(), bare=True, template=(("[func_name1(",),))
LLAMA4_PYTHONIC = ToolFormat(
    PythonicCalls(),
    section=("<|python_start|>", "<|python_end|>"),
    bare=True,
    template=(("<|python_start|>",), ("<|header_start|>", "[func_name1(")),
)
LFM2 = ToolFormat(
    PythonicCalls(),
    section=("<|tool_call_start|>", "<|tool_call_end|>"),
    template=(("<|tool_call_start|>",), ("<|tool_list_start|>",)),
)
OLMO3 = ToolFormat(
    PythonicCalls(listed=False),
    section=("<function_calls>\n", "\n</function_calls>"),
    template=(("<function_calls>",),),
)
FUNCTIONGEMMA = ToolFormat(
    BracedCalls("<escape>"),
    call=("<start_function_call>", "<end_function_call>"),
    template=(("<start_function_call>",),),
)
GEMMA4 = ToolFormat(BracedCalls('<|"|>'), call=("<|tool_call>", "<tool_call|>"), template=(("<|tool_call>",),))
HARMONY = ToolFormat(harmony.ChannelCalls(), whole_answer=True, template=(("<|channel|>", "<|start|>"),))

# ---------------------------------------------------------------- reasoning

DEEPSEEK_R1 = ReasoningFormat("<think>", "</think>", begins_inside=True)
QWEN3 = ReasoningFormat("<think>", "</think>", template=(("</think>",),))
KIMI_K2_THINKING = ReasoningFormat(
    "<think>", "</think>", ends_at_call=True, template=(("</think>", "<|tool_calls_section_begin|>"),)
)
KIMI_VL = ReasoningFormat("◁think▷", "◁/think▷", template=(("◁/think▷",),))
MISTRAL_THINK = ReasoningFormat("[THINK]", "[/THINK]", template=(("[THINK]",),))
GRANITE_THINK = ReasoningFormat(
    "Here is my thought process:", "Here is my response:", template=(("Here is my thought process:",),)
)
SEED_THINK = ReasoningFormat("<seed:think>", "</seed:think>", template=(("<seed:think>",),))
GEMMA4_THINK = ReasoningFormat(
    "<|channel>", "<channel|>", label="thought", ends_at_call=True, template=(("<|channel>", "<channel|>"),)
)
HARMONY_THINK = ReasoningFormat(
    f"{harmony.CHANNEL}analysis{harmony.MESSAGE}",
    f"{harmony.ENDS[0]}{harmony.START}assistant",
    answer_begins=f"{harmony.CHANNEL}final{harmony.MESSAGE}",
    whole_answer=True,
    template=(("<|channel|>", "<|start|>"),),
)
