"""Which format a chat template speaks; and that what a real template writes for a call is read back as that call."""

import json
from pathlib import Path

import pytest

from octavo.parsers.registry import REASONING_FORMATS, TOOL_FORMATS, pick_reasoning_format, pick_tool_format
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.tokenizer import load_tokenizer
from tests.parsers.samples import HARD, STYLES, format_of, read
from tests.script_model import write_tiny_tokenizer

TEMPLATES = {
    path.stem: path.read_text() for path in sorted((Path(__file__).parents[1] / "tokenizer/templates").glob("*.jinja"))
}


@pytest.mark.parametrize(
    ("family", "tools", "reasoning"),
    [
        ("qwen3", "hermes", "qwen3"),
        ("mistral", "mistral", None),
        ("chatml", "generic", None),
        ("gemma3", "generic", None),
        ("granite", "generic", None),
        ("llama3", "generic", None),
    ],
)
def test_real_templates_say_their_format(family: str, tools: str, reasoning: str | None) -> None:
    assert pick_tool_format([TEMPLATES[family]]) == tools
    assert pick_reasoning_format([TEMPLATES[family]]) == reasoning


@pytest.mark.parametrize(
    "style", [s for s in STYLES if format_of(s) not in ("generic", "xlam", "pythonic", "llama3_json")]
)
def test_a_template_that_writes_a_formats_calls_is_of_that_format(style: str) -> None:
    text = STYLES[style].answer(("weather", {"city": "Ulm"}), ("now", {}))
    picked = pick_tool_format(["{{ messages }}", f"{text} <|start|>"])
    assert TOOL_FORMATS.load(picked) is TOOL_FORMATS.load(format_of(style))


def test_llama_3_1_is_known_by_its_words() -> None:
    template = (
        'Environment: ipython ... {"name": function name, "parameters": dictionary of argument name and its value}'
    )
    assert pick_tool_format([template]) == "llama3_json"


@pytest.mark.parametrize(
    ("template", "picked"),
    [
        ("{{ '<|' + role + '|>' }}<|tool|>{{ tools }}<|/tool|>", "phi4_mini_json"),
        ("answer with functools[...] and nothing else", "phi4_mini_json"),
        ("answer as [func_name1(name=value), func_name2()]", "pythonic"),
        ("Environment: ipython. Answer as [func_name1(name=value)]", "pythonic"),
        ("<|header_start|>system<|header_end|> as [func_name1(name=value)]", "llama4_pythonic"),
        ("You are a model of Salesforce xLAM. Answer in a JSON array.", "xlam"),
        ("List of tools: <|tool_list_start|>{{ tools }}<|tool_list_end|>", "lfm2"),
        ("{% set mark = '｜DSML｜' %}{{ '<' + mark + 'function_calls>' }}{{ m.tool_calls }}", "deepseek_v32"),
        ("{% set mark = '｜DSML｜' %}{{ '<' + mark + 'tool_calls>' }}{{ m.tool_calls }}", "deepseek_v4"),
        ("<|tool_call|>{{ calls }}", "granite"),
    ],
)
def test_a_template_that_only_describes_its_format_is_known_by_its_words(template: str, picked: str) -> None:
    assert pick_tool_format([template]) == picked


@pytest.mark.parametrize("name", ["qwen3", "granite", "mistral", "kimi_vl", "gemma4", "seed_oss", "openai_gptoss"])
def test_a_template_with_a_familys_thinking_marks_is_of_its_format(name: str) -> None:
    form = REASONING_FORMATS.load(name)
    picked = pick_reasoning_format([f"{form.opens} ... {form.closes}"])
    assert picked is not None and REASONING_FORMATS.load(picked) is form


@pytest.mark.parametrize(("family", "style"), [("qwen3", "hermes"), ("mistral", "mistral")])
def test_what_a_template_writes_for_a_call_is_read_back(family: str, style: str, tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path, [], None)
    template = ChatTemplate(TEMPLATES[family], load_tokenizer(tmp_path))
    arguments = [HARD, {}]
    calls = [
        {"id": f"abcdefg{place}x", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for place, (name, given) in enumerate(zip(("weather", "now"), arguments, strict=True))
    ]
    question = {"role": "user", "content": "How is it?"}
    before = template.render([question], add_generation_prompt=True)
    after = template.render([question, {"role": "assistant", "tool_calls": calls}], add_generation_prompt=False)
    answer = after.removeprefix(before).removesuffix("<|im_end|>\n").removesuffix("<|im_end|>")
    said = read(answer, style, pick_reasoning_format([TEMPLATES[family]]))
    assert (said.names, said.values) == (["weather", "now"], arguments)
    assert said.content == said.reasoning == "" and said.complete == [True, True]


@pytest.mark.parametrize(
    ("name", "text", "reasoning", "content"),
    [
        ("qwen3", "<think>\nwhy <b>\n</think>\n\nHi ", "why <b>", "Hi "),
        ("qwen3", "\n<think>\n\n</think>\n\nHi", "", "Hi"),
        ("qwen3", " Hi </think>", "", " Hi </think>"),
        ("deepseek_r1", "why</think>Hi", "why", "Hi"),
        ("deepseek_r1", "<think>why</think>\nHi", "why", "Hi"),
        ("deepseek_r1", "why </th", "why", ""),
        ("granite", "Here is my thought process: a. Here is my response:\n b", "a.", "b"),
        ("mistral", "[THINK]a[/THINK]b", "a", "b"),
        ("kimi_vl", "◁think▷a◁/think▷b", "a", "b"),
        ("gemma4", "<|channel>thought\na<channel|>b", "a", "b"),
        ("seed_oss", "<seed:think>a</seed:think>b", "a", "b"),
        (
            "openai_gptoss",
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
            "a",
            "b",
        ),
        ("openai_gptoss", "<|channel|>analysis<|message|>a<|end|><|start|>assist", "a", ""),
        ("openai_gptoss", "plain <|channel|> text", "", "plain <|channel|> text"),
    ],
)
def test_thinking_is_taken_out_however_it_is_cut(name: str, text: str, reasoning: str, content: str) -> None:
    for pieces in ([text], list(text), [text[:5], text[5:9], text[9:]]):
        said = read(pieces, None, name)
        assert (said.reasoning, said.content) == (reasoning, content)


def test_a_prompt_that_opens_the_thinking_makes_the_answer_begin_in_it() -> None:
    assert read("why</think>Hi", None, "qwen3", inside=True).reasoning == "why"
    assert read("why", None, "qwen3", inside=True).content == ""


def test_a_call_ends_thinking_only_where_the_family_says_so() -> None:
    call = STYLES["kimi_k2"].answer(("now", {}))
    said = read("<think>hm " + call, "kimi_k2", "kimi_k2")
    assert (said.reasoning, said.names, said.content) == ("hm", ["now"], "")
    text = "hm " + STYLES["hermes"].answer(("now", {}))
    assert read("<think>" + text, "hermes", "qwen3").reasoning == text


def test_gpt_oss_answers_hold_thinking_text_and_a_call() -> None:
    text = (
        "<|channel|>analysis<|message|>I think.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
        '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city":  "Ulm"}<|call|>'
    )
    for pieces in ([text], list(text)):
        said = read(pieces, "openai", "openai_gptoss")
        assert (said.reasoning, said.content) == ("I think.", "Let me look.")
        assert (said.names, said.arguments) == (["weather"], ['{"city":  "Ulm"}'])
    assert '{"city":  "Ulm"}' in read(text, None, "openai_gptoss").content
