"""Servers shared by the tests of a session; each starts in a second and is idle between tests."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.config import ServerConfig
from tests.script_model import TOOLS_TEMPLATE, pieces_of, write_random_model, write_script_model
from tests.server.world import World, serve_app

PIECES = ["The", " quick", " brown", " fox", " jumps"]
SENTENCE = "".join(PIECES)

EMOJI_PIECES = [b"\xf0\x9f", b"\x98", b"\x80", b"\xc4", b"\x8f", "中"]
"""Three pieces of U+1F600, two of U+010F, and a whole character; spoken after a prompt that ends with "!"."""
EMOJI_TEXT = "\U0001f600ď中"

THOUGHT, TEXT, ARGUMENTS = "hmm, is it?", "Let me look.", {"city": "Paris", "days": 2}
SPOKEN = f"<think>{THOUGHT}</think>\n\n{TEXT}\n<tool_call>\n" + (
    json.dumps({"name": "get_weather", "arguments": ARGUMENTS}) + "\n</tool_call>"
)


@pytest.fixture(scope="session")
def script_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers `SENTENCE`, or `EMOJI_TEXT` after "!"."""
    return write_script_model(tmp_path_factory.mktemp("script"), PIECES, started_by={"!": EMOJI_PIECES})


@pytest.fixture(scope="session")
def random_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose answers vary."""
    return write_random_model(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="session")
def script(script_folder: Path) -> Iterator[World]:
    """A server of the script model."""
    with serve_app(script_folder) as world:
        yield world


@pytest.fixture(scope="session")
def varied(random_folder: Path) -> Iterator[World]:
    """A server of the random model, eight requests at a time."""
    with serve_app(random_folder, max_num_seqs=8) as world:
        yield world


@pytest.fixture(scope="module", params=[3, 7, 50])
def caller(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server whose model thinks, speaks and calls a tool, in tokens of about that many characters."""
    folder = tmp_path_factory.mktemp("caller")
    write_script_model(folder, pieces_of(SPOKEN, request.param), context_length=2048, chat_template=TOOLS_TEMPLATE)
    server = ServerConfig(disable_log_stats=True, tool_call_parser="hermes", reasoning_parser="qwen3")
    with serve_app(folder, server) as world:
        yield world
