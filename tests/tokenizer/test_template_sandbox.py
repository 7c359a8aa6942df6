"""Templates that ask for too much are stopped before they get it; those that ask for something ordinary get it."""

import time

import pytest

from octavo.errors import ClientError
from octavo.tokenizer.template_sandbox import ENVIRONMENT, within


def render(source: str, **variables: object) -> str:
    with within(2.0):
        return ENVIRONMENT.from_string(source).render(**variables)


GROW = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = OPERATION %}{% endfor %}{{ ns.x|length }}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**10 }}",
        "{{ 10**10 * 'x' }}",
        "{{ [1] * 10**10 }}",
        "{{ 9**999999999 }}",
        "{{ (2**4000) * (2**4000) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d'|format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:>999999999}'.format_map({}) }}",
        "{{ 'x'.ljust(10**10) }}",
        "{{ 'x'.rjust(width) }}",
        "{{ 'x'.zfill(10**10) }}",
        "{{ '\\t'.expandtabs(10**10) }}",
        "{{ 'x'|center(10**10) }}",
        "{{ 'x\\nx'|indent(10**10) }}",
        "{{ 1.5|round(10**9) }}",
        "{{ [1]|slice(10**9)|list }}",
        "{{ [[1]]|tojson(indent=10**10) }}",
        "{{ ('x' * 10**6).replace('x', 'y' * 10**6) }}",
        "{{ ('x' * 10**6)|replace('x', 'y' * 10**6) }}",
        "{{ ('y' * 10**6).join(['x'] * 10**4) }}",
        "{{ (['x'] * 10**4)|join('y' * 10**6) }}",
        GROW.replace("OPERATION", "ns.x + ns.x"),
        GROW.replace("OPERATION", "ns.x ~ ns.x"),
        GROW.replace("OPERATION", "ns.x * 3"),
        GROW.replace("OPERATION", "[ns.x, ns.x]|join(',')"),
        GROW.replace("OPERATION", "'%s%s' % (ns.x, ns.x)"),
        GROW.replace("OPERATION", "'{0}{0}'.format(ns.x)"),
        GROW.replace("OPERATION", "ns.x.replace('a', ns.x)"),
    ],
)
def test_a_value_that_would_be_huge_is_never_made(source: str) -> None:
    start = time.monotonic()
    with pytest.raises(ClientError, match="too large a value"):
        render(source, width=10**10)
    assert time.monotonic() - start < 1.5


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'ab' * 3 + 'c' }}{{ 2 * 3 }}{{ 2 ** 10 }}{{ 7 % 4 }}", "ababab" + "c610243"),
        ("{{ '%s-%05d' % ('a', 7) }}{{ '%s'|format('b') }}", "a-00007b"),
        ("{{ '{:>4}{x}'.format(1, x='y') }}", "   1y"),
        ("{{ 'a' ~ 1 ~ none ~ [2] }}", "a1None[2]"),
        ("{{ 'a,b'.split(',')|join('; ') }}{{ ', '.join(['x', 'y']) }}", "a; bx, y"),
        ("{{ 'aXb'.replace('X', '--')|replace('-', '+') }}", "a++b"),
        ("{{ 'x'.ljust(3) }}|{{ 'x'|center(5) }}|{{ 'a\\nb'|indent(2) }}", "x  |  x  |a\n  b"),
        ("{{ {'a': [1]}|tojson }}{{ [1]|tojson(indent=1) }}", '{"a": [1]}[\n 1\n]'),
        ("{{ 1.256|round(2) }}{{ [1, 2, 3]|batch(2)|list }}", "1.26[[1, 2], [3]]"),
        ("{{ ([1] + [2])|length }}{{ (1, 2) + (3,) }}", "2(1, 2, 3)"),
        ("{{ [{'a': 'x'}, {'a': 'y'}]|join(',', attribute='a') }}", "x,y"),
    ],
)
def test_ordinary_operations_are_those_of_jinja(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ lipsum(n=10**6) }}",
        "{{ x.append(1) }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
        "{{ ''|attr('__class__')|attr('__mro__') }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
    ],
)
def test_nothing_leads_out_of_the_sandbox(source: str) -> None:
    try:
        text = render(source, x=[])
    except Exception as err:
        assert "root:" not in str(err)
    else:
        assert "class" not in text and "module" not in text and "root:" not in text
