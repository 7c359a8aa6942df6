"""Thinking first: a grammar that holds from the end of the model's reasoning on. Knows no tokenizer.

What the form of `build.grammar_list` has besides under "thinking" is our own; `matcher.py` reads it.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

Marker = str | int
"""Part of the end of a model's thinking: text, or the id of a special token."""


_BLANKS = r"/\s{0,4}/"
"""What models write around the markers."""


class Thinking(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a model's thinking ends.

    Attributes:
        end: parts of the marker, in order.
        budget: after this many tokens the marker is written for the model; None lets it think as long as it likes.
        begin: parts of the marker without which the model does not think; none if it thinks from the start.
    """

    end: list[Marker]
    budget: int | None = None
    begin: list[Marker] = []


class GrammarList(msgspec.Struct, frozen=True, omit_defaults=True):
    """The form in which grammars travel. Without any grammar everything may be said."""

    grammars: list[dict[str, Any]]
    thinking: Thinking | None = None


def after_thinking(
    grammar: str | None,
    end_marker: Marker | Sequence[Marker],
    budget: int | None = None,
    begin_marker: Sequence[Marker] = (),
) -> str:
    """Free text up to and including `end_marker`, and from there on `grammar`.

    Args:
        grammar: in the form that `build_grammar` and `lark_grammar` return; None leaves the answer free.
        end_marker: "</think>", or the id of a special token, or a sequence of such parts. Text is found however the
            model's tokens cut it. The first part must not occur in the thinking itself.
        budget: most tokens of thinking, before the marker.
        begin_marker: an answer that does not begin with it is not thinking, and matches `grammar` at once. Empty: it
            begins inside the thinking.
    """
    end: list[Marker] = [end_marker] if isinstance(end_marker, str | int) else list(end_marker)
    begin = list(begin_marker)
    thinking = Thinking(end, budget, begin)
    if grammar is None:
        return msgspec.json.encode(GrammarList([], thinking)).decode()
    first, *others = json.loads(grammar)["grammars"]
    lead = {"lark_grammar": _lead(begin, end)}
    return msgspec.json.encode(GrammarList([lead, {**first, "name": "answer"}, *others], thinking)).decode()


def _lead(begin: list[Marker], end: list[Marker]) -> str:
    first, *others = end
    rest = "".join(f" {_term(part)}" for part in others)
    thoughts = f"<[^{first}]>* <[{first}]>" if isinstance(first, int) else "thoughts"
    rules = "" if isinstance(first, int) else f"thoughts[lazy]: /(?s:.*)/ {json.dumps(first)}\n"
    thinking = f"{thoughts}{rest}"
    if begin:
        thinking = f"({_BLANKS} {' '.join(map(_term, begin))} {thinking} {_BLANKS})?"
    return f"start: {thinking} @answer\n{rules}"


def _term(part: Marker) -> str:
    return f"<[{part}]>" if isinstance(part, int) else json.dumps(part)
