"""Where chat templates run: jinja as Transformers sets it up, in a sandbox, with bounds on time and on the size of
values. Knows no messages.

jinja's sandbox keeps a template from Python's insides and from changing what it is given. It does not keep it from
asking for a string of ten gigabytes in one operation, so whatever can make a value grow by more than its inputs is
looked at before it is done.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from octavo import limits
from octavo.errors import ClientError

MAX_SIZE = limits.RENDERED_CHARACTERS.default
"""Longest string or list that a template may make."""
MAX_BITS = 4096
"""Longest number."""
MAX_WIDTH = 10_000
"""Widest padding, indentation or rounding, most parts."""

_NUMBER = re.compile(r"\d+")
_DEADLINE: ContextVar[float] = ContextVar("deadline")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Templates that run here have to be done by then."""
    token = _DEADLINE.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


class _Extension(jinja2.ext.Extension):
    """The `{% generation %}` block, which only training needs, and the clock that stops endless templates."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Render the body of the block as if the tag were not there."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller: Any) -> str:
        return str(caller())

    def _tick(self) -> None:
        if time.monotonic() > _DEADLINE.get():
            raise ClientError("the chat template runs too long for these messages; send less", param="messages")

    def _concat(self, *parts: Any) -> str:
        texts = [str(part) for part in parts]
        _check_size(sum(map(len, texts)))
        return "".join(texts)

    def watch(self, template: nodes.Template) -> nodes.Template:
        """Look at the clock in every round of a loop and every call of a macro, and at the size of what `~` joins."""
        repeated: list[nodes.For | nodes.Macro] = [*template.find_all(nodes.For), *template.find_all(nodes.Macro)]
        for node in repeated:
            tick = nodes.ExprStmt(self.call_method("_tick"))
            node.body.insert(0, tick.set_lineno(node.lineno))
        watched: nodes.Template = _Concatenations(self).visit(template)
        return watched


class _Concatenations(NodeTransformer):
    """Has `a ~ b` done by the extension."""

    def __init__(self, extension: _Extension) -> None:
        self._extension = extension

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._extension.call_method("_concat", node.nodes).set_lineno(node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Extension, jinja2.ext.loopcontrols])
        for name in ("center", "indent", "slice", "batch", "round", "replace", "join", "format", "wordwrap"):
            if name in self.filters:
                self.filters[name] = _bounded(name, self.filters[name])
        self.filters["tojson"] = _bounded("tojson", _tojson)
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        clock = next(found for found in self.extensions.values() if isinstance(found, _Extension))
        return clock.watch(super()._parse(source, name, filename))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Do an operation whose result has a bounded size."""
        _check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what the sandbox lets through; methods of strings make strings of a bounded size."""
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_text_method(method.__name__, (owner, *args, *kwargs.values()))
        return super().call(__context, __obj, *args, **kwargs)


def _check_operation(operator: str, left: Any, right: Any) -> None:
    numbers = [value for value in (left, right) if isinstance(value, int)]
    sized = [value for value in (left, right) if isinstance(value, str | Sequence)]
    if operator == "%" and isinstance(left, str):
        _check_text_method("format", (left, *(right if isinstance(right, tuple) else (right,))))
    elif operator == "+" and len(sized) == 2:
        _check_size(len(left) + len(right))
    elif operator == "*" and sized and numbers:
        _check_size(len(sized[0]) * numbers[0])
    elif len(numbers) == 2:
        bits = [number.bit_length() for number in numbers]
        if operator in ("*", "**") and (sum(bits) if operator == "*" else bits[0] * abs(numbers[1])) > MAX_BITS:
            _too_large()


def _check_text_method(name: str, arguments: tuple[Any, ...]) -> None:
    """Bound the result of a method of strings, or of the filter of that name. The text itself comes first."""
    text, *rest = arguments
    size = len(text) if isinstance(text, str | Sequence) else 0
    if any(isinstance(argument, int) and abs(argument) > MAX_WIDTH for argument in rest) and name in _PADDING:
        _too_large()
    if name in ("indent", "expandtabs"):
        _check_size(size * MAX_WIDTH if size > MAX_SIZE // MAX_WIDTH else 0)
    if name == "replace" and len(rest) >= 2 and isinstance(text, str):
        old, new = str(rest[0]), str(rest[1])
        _check_size(size + text.count(old) * len(new))
    if name == "join" and rest:
        _check_size(_joined_size(text, rest[0]))
    if name in ("format", "format_map") and isinstance(text, str):
        if "*" in text or any(len(number) > 4 for number in _NUMBER.findall(text)):
            _too_large()
        _check_size(size + (text.count("{") + text.count("%")) * max((len(str(one)) for one in rest), default=0))


_PADDING = frozenset(
    ["center", "ljust", "rjust", "zfill", "expandtabs", "indent", "slice", "batch", "round", "tojson", "wordwrap"]
)


def _joined_size(text: Any, other: Any) -> int:
    """Of `separator.join(items)`, or of the filter, whose items come first."""
    separator, items = (text, other) if isinstance(text, str) and not isinstance(other, str) else (other, text)
    if not isinstance(items, Sequence):
        return 0
    return sum(len(item) + len(str(separator)) for item in items if isinstance(item, str | Sequence))


def _bounded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, after a look at what it would make; jinja's marks on it (what else it is given) stay."""
    passes = getattr(filter_, "jinja_pass_arg", None)

    def bounded(*args: Any, **kwargs: Any) -> Any:
        _check_text_method(name, (*args[passes is not None :], *kwargs.values()))
        return filter_(*args, **kwargs)

    if passes is not None:
        bounded.jinja_pass_arg = passes  # type: ignore[attr-defined]
    return bounded


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        _too_large()


def _too_large() -> NoReturn:
    raise ClientError("the chat template makes too large a value of these messages; send less", param="messages")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models have seen it in training: not escaped for HTML, unlike jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


ENVIRONMENT = _Environment()
