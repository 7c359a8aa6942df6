"""Every format: what its models write is read, however it is cut, and what is broken is text."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.parsers.registry import REASONING_FORMATS, TOOL_FORMATS
from tests.parsers.samples import HARD, STYLES, Said, format_of, read

EVERY = pytest.mark.parametrize("style", STYLES)
ESCAPED = {"functiongemma": "<escape>", "gemma4": '<|"|>', "glm45": "</arg_value>"}


def hard(style: str) -> dict[str, Any]:
    """The hard arguments, without what a format's own grammar cannot carry."""
    return HARD


@EVERY
def test_one_call(style: str) -> None:
    said = read(STYLES[style].answer(("weather", hard(style))), format_of(style))
    assert said.names == ["weather"] and said.complete == [True]
    assert said.values == [hard(style)]
    assert said.content == said.reasoning == ""


@EVERY
def test_two_calls_one_of_them_without_arguments(style: str) -> None:
    said = read(STYLES[style].answer(("now", {}), ("weather", {"city": "Ulm", "days": 2})), format_of(style))
    assert said.names == ["now", "weather"]
    assert said.values == [{}, {"city": "Ulm", "days": 2}]
    assert len(set(said.ids)) == 2 or "kimi" in style
    assert said.content == ""


@pytest.mark.parametrize("style", [name for name, style in STYLES.items() if style.text_before])
def test_text_before_and_after_calls_is_content_without_the_blanks_between(style: str) -> None:
    said = read("Sure! <b>\n\n" + STYLES[style].answer(("weather", {"city": "Ulm"})) + "\n", format_of(style))
    assert said.content == "Sure! <b>"
    assert said.values == [{"city": "Ulm"}]


@EVERY
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_how_an_answer_is_cut_never_shows(style: str, data: st.DataObject) -> None:
    before = "Sure!\n" if STYLES[style].text_before else ""
    text = before + STYLES[style].answer(
        ("weather", hard(style)), ("now", {}), ("weather", {"note": None, "exact": True})
    )
    text = text[: data.draw(st.integers(len(text) // 2, len(text)))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=30)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(text, format_of(style)).without_ids()
    assert read(pieces, format_of(style)).without_ids() == whole
    assert read(list(text), format_of(style)).without_ids() == whole


@EVERY
def test_an_answer_cut_anywhere_loses_nothing(style: str) -> None:
    text = STYLES[style].answer(("weather", {"city": "Ulm", "note": "x"}))
    whole = read(text, format_of(style))
    for end in range(len(text)):
        said = read(text[:end], format_of(style))
        if said.names:  # the call has begun: what there is of it is a beginning of the whole
            assert said.names == ["weather"] and said.content == ""
            assert whole.arguments[0].startswith(said.arguments[0])
            assert said.complete == [said.arguments == whole.arguments]
        else:
            assert said.content.strip() == text[:end].strip() or style == "openai"


@EVERY
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_text_makes_a_reader_fail_and_no_cut_shows_in_any(style: str, data: st.DataObject) -> None:
    form = TOOL_FORMATS.load(format_of(style))
    words = [
        *form.markers,
        *_words(style),
        *'{}[]()",:=\\\n',
        " ",
        "weather",
        "name",
        '"arguments"',
        "é",
        "<",
        "|>",
    ]
    pieces = data.draw(st.lists(st.sampled_from(words), max_size=25))
    reasoning = data.draw(st.sampled_from([None, *REASONING_FORMATS]))
    inside = data.draw(st.booleans())
    whole = read("".join(pieces), format_of(style), reasoning, inside=inside).without_ids()
    assert read(pieces, format_of(style), reasoning, inside=inside).without_ids() == whole
    assert read(list("".join(pieces)), format_of(style), reasoning, inside=inside).without_ids() == whole


def _words(style: str) -> list[str]:
    """Pieces of a good call, so that random texts get somewhere."""
    text = STYLES[style].answer(("weather", {"city": "Ulm"}))
    return [text, text[: len(text) // 2], text[len(text) // 2 :], text[:-3]]


@EVERY
def test_complete_means_that_the_arguments_are_json(style: str) -> None:
    text = STYLES[style].answer(("weather", hard(style)))
    for place in range(0, len(text), 3):
        said = read(text[:place] + "\x07}" + text[place:], format_of(style))
        for arguments, complete in zip(said.arguments, said.complete, strict=True):
            if complete:
                assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("style", [s for s in STYLES if s not in ("openai", "mistral")])
def test_markers_without_a_call_are_text(style: str) -> None:
    form = TOOL_FORMATS.load(format_of(style))
    for marker in form.openers:
        text = f"The marker {marker} opens a call."
        assert read(text, format_of(style)).content == text


def test_every_format_is_tested() -> None:
    loaded = {id(TOOL_FORMATS.load(name)) for name in TOOL_FORMATS}
    assert loaded == {id(TOOL_FORMATS.load(format_of(style))) for style in STYLES}


def test_text_without_tools_is_only_text() -> None:
    text = STYLES["hermes"].answer(("weather", {"city": "Ulm"}))
    said = read(f"  {text}  ", None)
    assert said == Said(content=f"  {text}  ")
