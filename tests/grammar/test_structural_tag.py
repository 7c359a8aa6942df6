"""xgrammar's formats, each with texts that it describes and texts that it does not."""

import json
from typing import Any

import pytest

from octavo.errors import ClientError
from tests.grammar.test_build import CLOSED, accepts, grammar

JSON = {"type": "json_schema", "json_schema": CLOSED}
ANY = {"type": "any_text"}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(name: str, content: Any = JSON, end: Any = None) -> dict[str, Any]:
    return {"type": "tag", "begin": f"<{name}>", "content": content, "end": f"</{name}>" if end is None else end}


def tags(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "tags": [tag("f"), tag("g", ANY)], **more}


def made(form: Any) -> str:
    return grammar(structural_tag={"type": "structural_tag", "format": form})


MAYBE_A = {"type": "optional", "content": const("a")}
TRIGGERED = {"triggers": ["<"]}
LISTED = {"separator": ", "}
F, G = '<f>{"a": 1}</f>', "<g>any < text</g>"


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (const("Zoë: /x"), ["Zoë: /x"], ["Zoë:", ""]),
        (JSON, ['{"a": 1}'], ["{}"]),
        ({"type": "regex", "pattern": r"[a-z]{2}/\d"}, ["ab/1"], ["ab1"]),
        ({"type": "grammar", "grammar": 'root ::= "yes" | "no"'}, ["yes", "no"], ["maybe"]),
        (ANY, ["", "a\nb"], []),
        ({**ANY, "excludes": ["bad\n", "<"]}, ["", "bad"], ["a bad\n", "x<"]),
        ({"type": "sequence", "elements": [const("A: "), JSON, ANY]}, ['A: {"a": 1} and more'], ["A: {}", 'B{"a": 1}']),
        ({"type": "or", "elements": [const("yes"), tag("f")]}, ["yes", F], ["no", "yes" + F]),
        ({"type": "sequence", "elements": [MAYBE_A, const("b")]}, ["ab", "b"], ["a"]),
        ({"type": "plus", "content": tag("f")}, [F, F + F], [""]),
        ({"type": "star", "content": const("x")}, ["", "xx"], ["xy"]),
        ({"type": "repeat", "min": 1, "max": 2, "content": const("x")}, ["x", "xx"], ["", "xxx"]),
        ({"type": "repeat", "min": 2, "max": -1, "content": const("x")}, ["xx", "xxxx"], ["x"]),
        (tag("t", ANY), ["<t></t>", "<t>a <b> c</t>"], ["<t>a", "<t>a</t>b"]),
        (tag("t", ANY, ["</t>", "</u>"]), ["<t>x</u>", "<t>x</t>"], ["<t>x</v>"]),
        (tag("t", {"type": "sequence", "elements": [const("a"), ANY]}), ["<t>ab</t>"], ["<t>b</t>"]),
        (tag("t", {"type": "or", "elements": [ANY, JSON]}), ["<t>x</t>"], ["<t>x</t>y"]),
        (tag("t", ANY, ""), ["<t>x</t>"], ["t>"]),
        (tags("triggered_tags", **TRIGGERED), ["", "text", f"hm {F} and {G}{F} so"], ["a < b", f"{F} <f>{{}}</f>"]),
        (tags("triggered_tags", **TRIGGERED, at_least_one=True), [F, f"{G} then {F}."], ["text", f"hm {F}"]),
        (tags("triggered_tags", **TRIGGERED, stop_after_first=True), ["text", f"hm {F}"], [f"{F} more", F + G]),
        (tags("triggered_tags", **TRIGGERED, at_least_one=True, stop_after_first=True), [F, G], ["", f"x{F}", F + G]),
        (tags("triggered_tags", **TRIGGERED, excludes=["hm"]), [f"so {F}"], [f"hm {F}", f"{F} hm"]),
        (tag("t", tags("triggered_tags", triggers=["<f", "<g"])), ["<t>x</t>", f"<t>x{F} y</t>"], [f"<t>{F}"]),
        (tags("tags_with_separator", **LISTED), ["", F, f"{F}, {G}, {F}"], [F + F, f"{F}, ", "x"]),
        (tags("tags_with_separator", **LISTED, at_least_one=True), [F, f"{F}, {G}"], [""]),
        (tags("tags_with_separator", **LISTED, stop_after_first=True), ["", G], [f"{F}, {G}"]),
    ],
)  # fmt: skip
def test_each_format_accepts_what_it_describes_and_nothing_else(form: Any, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert accepts(made(form), text), text
    for text in bad:
        assert not accepts(made(form), text), text
    assert made(json.loads(json.dumps(form))) == grammar(structural_tag=json.dumps({"format": form}))


def test_json_in_a_tag_is_written_as_the_request_says() -> None:
    text = grammar(structural_tag={"format": tag("f")}, disable_any_whitespace=True)
    assert accepts(text, '<f>{"a":1}</f>') and not accepts(text, F)
    assert not accepts(made(tag("f")), '<f>{   "a": 1}</f>')


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("x", "format has the type 'None'; known: const_string"),
        ({"type": "token", "token": 5}, "format has the type 'token'"),
        (tag("t", {"type": "dispatch"}), r"format\.content has the type 'dispatch'"),
        ({"type": "const_string", "value": 5}, r"format\.value must be text, got int"),
        ({**ANY, "max_tokens": 5}, "'max_tokens', which is not supported"),
        ({**JSON, "style": "qwen_xml"}, "only the style json"),
        ({"type": "json_schema", "json_schema": {"items": {"pattern": "x**"}}}, "format: .*/items"),
        ({"type": "regex", "pattern": "a**"}, "format: "),
        ({"type": "sequence", "elements": [ANY, const("x")]}, r"format\.elements\[0\] is text of any length"),
        ({"type": "sequence", "elements": []}, r"format\.elements must be a list that is not empty"),
        ({"type": "star", "content": ANY}, r"format\.content is text of any length"),
        ({"type": "repeat", "min": 3, "max": 2, "content": JSON}, "0 <= min <= max"),
        ({**tag("x"), "begin": {"type": "token", "token": 1}}, "begin must be text, got dict"),
        ({"type": "tag", "begin": "x", "content": JSON, "end": []}, "end must be text or a list"),
        (tags("triggered_tags", triggers=["["]), r"format\.tags\[0\]\.begin is '<f>'"),
        (tags("triggered_tags", triggers=[""]), r"format\.triggers must be"),
        ({"type": "tags_with_separator", "tags": [JSON], "separator": ","}, r"format\.tags\[0\] must be a tag"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_with_its_place(form: Any, words: str) -> None:
    with pytest.raises(ClientError, match=words) as caught:
        made(form)
    assert caught.value.param == "structured_outputs.structural_tag"


@pytest.mark.parametrize("depth", [65, 3000])
def test_formats_nested_too_deeply_are_refused(depth: int) -> None:
    form: dict[str, Any] = const("x")
    for _ in range(depth):
        form = {"type": "star", "content": form}
    with pytest.raises(ClientError, match="nested more than 64 levels"):
        made(form)
