"""Structural tags as a grammar: a tree of formats in xgrammar's notation, or the older form with `structures`, in which
free text goes on until a trigger ("<function=") begins a tagged part. Knows no tokens.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from octavo import limits
from octavo.errors import ClientError

_FORM = '{"format": {"type": ...}} or {"structures": [{"begin", "schema", "end"}, ...], "triggers": [text, ...]}'

_FIELDS: dict[str, tuple[str, ...]] = {
    "const_string": ("value",),
    "json_schema": ("json_schema", "style", "any_order"),
    "regex": ("pattern",),
    "grammar": ("grammar",),
    "any_text": ("excludes",),
    "sequence": ("elements",),
    "or": ("elements",),
    "optional": ("content",),
    "plus": ("content",),
    "star": ("content",),
    "repeat": ("content", "min", "max"),
    "tag": ("begin", "content", "end"),
    "triggered_tags": ("triggers", "tags", "at_least_one", "stop_after_first", "excludes"),
    "tags_with_separator": ("tags", "separator", "at_least_one", "stop_after_first"),
}
"""Format -> its fields besides the type."""

Grammar = dict[str, Any]

Tail = Sequence[str] | None
"""What follows a format: texts of which one ends it, none where the answer ends, None if something else comes. Text of
any length is bounded by its tail alone.
"""


class TagGrammar(NamedTuple):
    """A Lark text, and the grammars that it names."""

    lark: str
    named: list[Grammar]


def tag_grammar(tag: Any, build: Callable[[str, Any], list[Grammar]]) -> TagGrammar:
    """The grammar of a structural tag.

    Args:
        build: the grammars of one kind of structured output ("json", "regex", "grammar"), by its name and value.

    Raises:
        ClientError: it has another form, or asks for what cannot be enforced; the message says where.
    """
    writer = _Writer(build)
    if isinstance(tag, dict) and "format" in tag:
        start = writer.write(tag["format"], "format", ())
    else:
        start = writer.write(_from_structures(tag), "", ())
    return TagGrammar("\n".join([f"start: {start}", *writer.rules]) + "\n", writer.named)


def _from_structures(tag: Any) -> Grammar:
    structures = tag.get("structures") if isinstance(tag, dict) else None
    if not isinstance(structures, list) or not structures or not isinstance(tag.get("triggers"), list):
        raise ClientError(f"structural_tag must have the form {_FORM}")
    for index, structure in enumerate(structures):
        if not isinstance(structure, dict):
            raise ClientError(f"structures[{index}] must have begin and end, both text")
    tags = [
        {
            "begin": structure.get("begin"),
            "content": {"type": "json_schema", "json_schema": structure.get("schema", {})},
            "end": structure.get("end"),
        }
        for structure in structures
    ]
    return {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}


class _Writer:
    """Writes formats as expressions and collects the rules and grammars that those name."""

    def __init__(self, build: Callable[[str, Any], list[Grammar]]) -> None:
        self._build = build
        self.rules: list[str] = []
        self.named: list[Grammar] = []

    def write(self, form: Any, place: str, tail: Tail) -> str:
        """One format and what ends it."""
        kind = form.get("type") if isinstance(form, dict) else None
        if not isinstance(kind, str) or kind not in _FIELDS:
            raise ClientError(f"{place or 'format'} has the type {str(kind)[:80]!r}; known: {', '.join(_FIELDS)}")
        if place.count(".") > limits.SCHEMA_LEVELS.value:
            raise ClientError(f"formats are nested more than {limits.SCHEMA_LEVELS.value} levels deep; flatten them")
        unknown = form.keys() - {"type", *_FIELDS[kind]}
        if unknown:
            raise ClientError(
                f"{place} of type {kind} has {min(unknown)[:80]!r}, which is not supported; known: "
                f"{', '.join(_FIELDS[kind])}"
            )
        written: str = getattr(self, f"_{kind}")(form, place, tail)
        return written

    # ------------------------------------------------------------ what has an end of its own

    def _const_string(self, form: Grammar, place: str, tail: Tail) -> str:
        return _then(json.dumps(_text(form, "value", place)), tail)

    def _json_schema(self, form: Grammar, place: str, tail: Tail) -> str:
        if form.get("style", "json") != "json" or form.get("any_order"):
            raise ClientError(f"{place}: only the style json is supported, with properties in the order of the schema")
        return self._named("json", form.get("json_schema"), place, tail)

    def _regex(self, form: Grammar, place: str, tail: Tail) -> str:
        return self._named("regex", _text(form, "pattern", place), place, tail)

    def _grammar(self, form: Grammar, place: str, tail: Tail) -> str:
        return self._named("grammar", _text(form, "grammar", place), place, tail)

    def _sequence(self, form: Grammar, place: str, tail: Tail) -> str:
        elements = _list(form, "elements", place)
        last = len(elements) - 1
        return " ".join(
            self.write(element, f"{place}.elements[{i}]", tail if i == last else None)
            for i, element in enumerate(elements)
        )

    def _or(self, form: Grammar, place: str, tail: Tail) -> str:
        elements = enumerate(_list(form, "elements", place))
        return _either(self.write(element, f"{place}.elements[{i}]", tail) for i, element in elements)

    def _optional(self, form: Grammar, place: str, tail: Tail) -> str:
        return self._repeated(form, place, tail, "?")

    def _plus(self, form: Grammar, place: str, tail: Tail) -> str:
        return self._repeated(form, place, tail, "+")

    def _star(self, form: Grammar, place: str, tail: Tail) -> str:
        return self._repeated(form, place, tail, "*")

    def _repeat(self, form: Grammar, place: str, tail: Tail) -> str:
        least, most = form.get("min"), form.get("max")
        if type(least) is not int or type(most) is not int or least < 0 or (most != -1 and most < max(1, least)):
            raise ClientError(f"{place}: min and max must be whole numbers, 0 <= min <= max, or max -1 for no bound")
        return self._repeated(form, place, tail, f"{{{least},{'' if most == -1 else most}}}")

    def _repeated(self, form: Grammar, place: str, tail: Tail, times: str) -> str:
        return _then(f"({self.write(form.get('content'), f'{place}.content', None)}){times}", tail)

    def _tag(self, form: Grammar, place: str, tail: Tail) -> str:
        begin = _text(form, "begin", place)
        return " ".join([*_literal(begin), self._inside(form, place, tail)])

    def _inside(self, tag: Grammar, place: str, tail: Tail) -> str:
        """Content and end of a tag. An empty end is none: the content ends as the tag does."""
        ends = tag.get("end")
        ends = ends if isinstance(ends, list) else [ends]
        if not ends or not all(isinstance(end, str) for end in ends) or ("" in ends and len(ends) > 1):
            raise ClientError(f"{place}.end must be text or a list of texts")
        content = tag.get("content")
        if ends == [""]:
            return self.write(content, f"{place}.content", tail)
        return _then(self.write(content, f"{place}.content", ends), tail)

    def _tags_with_separator(self, form: Grammar, place: str, tail: Tail) -> str:
        one = _either(self._tag(tag, where, None) for where, tag in _tags(form, place))
        if not form.get("stop_after_first"):
            one += f" ({' '.join([*_literal(_text(form, 'separator', place)), one])})*"
        return _then(one if form.get("at_least_one") else f"({one})?", tail)

    # ------------------------------------------------------------ what ends where its tail begins

    def _any_text(self, form: Grammar, place: str, tail: Tail) -> str:
        return self._text_up_to(tail, place, _excluded(form, place))

    def _triggered_tags(self, form: Grammar, place: str, tail: Tail) -> str:
        triggers = _list(form, "triggers", place)
        if not all(isinstance(trigger, str) and trigger for trigger in triggers):
            raise ClientError(f"{_dotted(place, 'triggers')} must be a list of texts, none of them empty")
        excluded = _excluded(form, place)
        leads = {trigger: self._text_up_to([trigger], place, excluded) for trigger in triggers}
        at_once, after_text = [], []
        for where, tag in _tags(form, place):
            begin = _text(tag, "begin", where)
            # The text before a tag ends with the first trigger in it, so the shortest comes first.
            trigger = min((trigger for trigger in triggers if begin.startswith(trigger)), key=len, default=None)
            if trigger is None:
                raise ClientError(f"{where}.begin is {begin[:80]!r}, with which none of the triggers begins")
            inside = self._rule(self._inside(tag, where, None))
            at_once.append(" ".join([*_literal(begin), inside]))
            after_text.append(" ".join([leads[trigger], *_literal(begin.removeprefix(trigger)), inside]))
        if form.get("stop_after_first"):
            if form.get("at_least_one"):
                return _then(_either(at_once), tail)
            return _either([_then(_either(after_text), tail), self._text_up_to(tail, place, excluded)])
        first = [_either(at_once)] if form.get("at_least_one") else []
        return " ".join([*first, f"{_either(after_text)}*", self._text_up_to(tail, place, excluded)])

    def _text_up_to(self, ends: Tail, place: str, excluded: Sequence[str]) -> str:
        """Any text, up to and including the first of `ends`."""
        if ends is None:
            raise ClientError(
                f"{place} is text of any length, whose end cannot be told from what follows; put it last, or into a tag"
            )
        text = "/(?s:.*)/"
        if excluded:
            name = f"TEXT_{len(self.rules)}"
            self.rules.append(f"{name}: ~(/(?s:.*)/ {_either(map(json.dumps, excluded))} /(?s:.*)/)")
            text = name
        return self._rule(_then(text, ends), "[lazy]") if ends else text

    # ------------------------------------------------------------ parts

    def _rule(self, body: str, attributes: str = "") -> str:
        name = f"part_{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {body}")
        return name

    def _named(self, kind: str, value: Any, place: str, tail: Tail) -> str:
        try:
            grammars = self._build(kind, value)
        except ClientError as err:
            raise ClientError(f"{place}: {err.message}") from None
        if len(grammars) > 1:
            raise ClientError(f"{place} must be one grammar, not a list of them")
        name = f"grammar_{len(self.named)}"
        self.named.append({**grammars[0], "name": name})
        return _then(f"@{name}", tail)


def _then(written: str, tail: Tail) -> str:
    return f"{written} {_either(map(json.dumps, tail))}" if tail else written


def _either(written: Iterable[str]) -> str:
    return f"({' | '.join(written)})"


def _literal(text: str) -> list[str]:
    return [json.dumps(text)] if text else []


def _text(form: Grammar, name: str, place: str) -> str:
    value = form.get(name)
    if not isinstance(value, str):
        raise ClientError(f"{_dotted(place, name)} must be text, got {type(value).__name__}")
    return value


def _list(form: Grammar, name: str, place: str) -> list[Any]:
    value = form.get(name)
    if not isinstance(value, list) or not value:
        raise ClientError(f"{_dotted(place, name)} must be a list that is not empty")
    return value


def _tags(form: Grammar, place: str) -> Iterable[tuple[str, Grammar]]:
    """Each with its place."""
    for index, tag in enumerate(_list(form, "tags", place)):
        where = f"{_dotted(place, 'tags') if place else 'structures'}[{index}]"
        if not isinstance(tag, dict) or tag.get("type", "tag") != "tag" or tag.keys() - {"type", *_FIELDS["tag"]}:
            raise ClientError(f"{where} must be a tag: begin, content and end")
        yield where, tag


def _excluded(form: Grammar, place: str) -> list[str]:
    texts = form.get("excludes") or []
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ClientError(f"{_dotted(place, 'excludes')} must be a list of texts, none of them empty")
    return texts


def _dotted(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
