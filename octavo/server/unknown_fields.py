"""Fields of a body that change nothing in the answer: those that are meant so, and those that nobody here knows.

The unknown ones are named in the header X-Octavo-Ignored-Fields, or refused under `--strict-fields`: a misspelt or
removed field must not pass for one that works.
"""

from collections.abc import Iterator
from urllib.parse import quote

from octavo.errors import ClientError
from octavo.server.refusals import CHECKED, REFUSED
from octavo.server.requests import Body

HEADER = "X-Octavo-Ignored-Fields"

WITHOUT_EFFECT = {
    "user": "names the end user, which changes no answer",
    "safety_identifier": "names the end user, which changes no answer",
    "metadata": "labels of the client's own",
    "prompt_cache_key": "prompts are always looked up in the prefix cache",
    "guided_decoding_backend": "there is one",
    "session_id": "there is one engine to go to",
    "stream_options.include_obfuscation": "chunks are not padded",
}
"""Fields that may be sent and need no warning, and why they do nothing."""

PLAIN_VALUES: dict[str, tuple[object, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "early_stopping": (False,),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "verbosity": ("medium",),
    "detokenize": (True,),
    "include_reasoning": (True,),
}
"""Values that ask for what happens anyway. Any other value of these fields counts as unknown."""

MAX_SHOWN = 20
MAX_NAME_CHARACTERS = 64


def unknown_fields(body: Body) -> list[str]:
    """Fields of a body, and of the objects in it that have declared fields, that nothing here looks at."""
    return [path for path, value in _extras(body, "") if not _is_known(path, value)]


def refuse_unknown(fields: list[str]) -> None:
    """What `--strict-fields` does with them.

    Raises:
        ClientError: there are some.
    """
    if fields:
        shown = ", ".join(repr(_short(field)) for field in fields[:MAX_SHOWN])
        raise ClientError(
            f"unknown field{'s' if len(fields) > 1 else ''} {shown}; remove what is not meant, or start the server "
            "without --strict-fields",
            param=_short(fields[0]),
            code="unknown_field",
        )


def header_value(fields: list[str]) -> str:
    """The fields as a header may hold them."""
    shown = [quote(_short(field), safe=".[]_-") or '""' for field in fields[:MAX_SHOWN]]
    return ", ".join(shown) + (f", and {len(fields) - MAX_SHOWN} more" if len(fields) > MAX_SHOWN else "")


def _extras(body: Body, prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in (body.model_extra or {}).items():
        yield prefix + name, value
    for name in body.model_fields_set & type(body).model_fields.keys():
        value = getattr(body, name)
        if isinstance(value, Body):
            yield from _extras(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Body):
            for index, item in enumerate(value):
                if isinstance(item, Body):
                    yield from _extras(item, f"{prefix}{name}[{index}].")


def _is_known(path: str, value: object) -> bool:
    return path in WITHOUT_EFFECT or path in REFUSED or path in CHECKED or value in PLAIN_VALUES.get(path, ())


def _short(field: str) -> str:
    return field if len(field) <= MAX_NAME_CHARACTERS else field[: MAX_NAME_CHARACTERS - 3] + "..."
