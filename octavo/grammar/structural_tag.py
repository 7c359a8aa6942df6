"""Structural tags as a Lark grammar: free text in which a trigger ("<function=") begins a tagged part, whose content
matches the schema of the tag. Knows no tokens.
"""

import json
from collections.abc import Callable
from typing import Any

from octavo.errors import ClientError

_FORM = '{"structures": [{"begin": text, "schema": object, "end": text}, ...], "triggers": [text, ...]}'


def tags_to_lark(tag: Any, checked: Callable[[Any], str]) -> str:
    """The grammar of `{"structures": [...], "triggers": [...]}`.

    Args:
        checked: JSON text of a schema, with its options.

    Raises:
        ClientError: it has another form, or a tag that no trigger begins.
    """
    structures, triggers = _read(tag)
    rules = ["start: tagged* text", "tagged: " + " | ".join(f"tag_{i}" for i in range(len(structures)))]
    for index, structure in enumerate(structures):
        begin, end = structure["begin"], structure["end"]
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if trigger is None:
            raise ClientError(f"structures[{index}].begin is {begin[:80]!r}, with which none of the triggers begins")
        # The text before a tag ends with the first trigger in it: that is what lazy means.
        rules.append(f"lead_{index}[lazy]: /(?s:.*)/ {json.dumps(trigger)}")
        rest = [json.dumps(text) for text in (begin.removeprefix(trigger),) if text]
        content = f"%json {checked(structure['schema'])}"
        rules.append(" ".join([f"tag_{index}: lead_{index}", *rest, content, *([json.dumps(end)] if end else [])]))
    rules.append("text: /(?s:.*)/")
    return "\n".join(rules) + "\n"


def _read(tag: Any) -> tuple[list[dict[str, Any]], list[str]]:
    if isinstance(tag, dict) and "format" in tag:
        raise ClientError(f"structural_tag with a format is not supported by this version; write {_FORM}")
    structures = tag.get("structures") if isinstance(tag, dict) else None
    triggers = tag.get("triggers") if isinstance(tag, dict) else None
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures:
        raise ClientError(f"structural_tag must have the form {_FORM}")
    if not all(isinstance(trigger, str) and trigger for trigger in triggers):
        raise ClientError("triggers must be a list of texts, none of them empty")
    for index, structure in enumerate(structures):
        if not isinstance(structure, dict) or not all(isinstance(structure.get(k), str) for k in ("begin", "end")):
            raise ClientError(f"structures[{index}] must have begin and end, both text")
        structure.setdefault("schema", {})
    return structures, triggers
