"""The generated pages are what the code says now."""

from pathlib import Path

from octavo.cli.reference import cli_page, configuration_page

DOCS = Path(__file__).parents[2] / "docs"
RENEW = "stale; run `python -m octavo.cli.reference docs`"


def test_the_command_line_page_is_fresh():
    assert (DOCS / "cli.md").read_text() == cli_page(), RENEW


def test_the_configuration_page_is_fresh():
    assert (DOCS / "configuration.md").read_text() == configuration_page(), RENEW
