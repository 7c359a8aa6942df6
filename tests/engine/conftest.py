"""Engines in processes of their own, for the tests of what lies between."""

import sys

import pytest

from octavo.engine.async_llm import AsyncLLM
from tests.engine.worlds import make_engine_config, write_plugin, write_tokenizer


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A tokenizer, and the plug-in that lets the engine process use `ScriptedExecutor`."""
    folder = tmp_path_factory.mktemp("files")
    write_tokenizer(folder / "tokenizer")
    sys.path.insert(0, str(write_plugin(folder)))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture
def make_engine(files):
    """Engines in processes of their own; not started."""

    def make(*, watchdog_timeout_s=300.0, **options):
        config = make_engine_config(tokenizer_path=str(files / "tokenizer"), executor="scripted", **options)
        return AsyncLLM(config, watchdog_timeout_s=watchdog_timeout_s)

    return make
