"""The generated pages are what the code says now."""

from pathlib import Path

import pytest

from octavo.cli.reference import PAGES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_fresh(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "stale; run `python -m octavo.cli.reference docs`"
