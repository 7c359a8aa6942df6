import pytest

from octavo import envs
from octavo.errors import ConfigError


def test_a_variable_is_read_when_it_is_asked_for(monkeypatch):
    monkeypatch.delenv("OCTAVO_LOG_LEVEL", raising=False)
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    assert envs.LOG_LEVEL.get() == "INFO"
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "warn")
    assert envs.LOG_LEVEL.get() == "WARNING"
    monkeypatch.setenv("OCTAVO_LOG_LEVEL", "debug")
    assert envs.LOG_LEVEL.get() == "DEBUG"


def test_a_value_that_cannot_be_read_names_its_variable(monkeypatch):
    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "-1")
    with pytest.raises(ConfigError, match="VLLM_LOG_STATS_INTERVAL is '-1': must be a positive"):
        envs.LOG_STATS_INTERVAL.get()


def test_there_are_few_variables_and_each_says_what_it_is():
    assert len(envs.VARIABLES) <= 15
    assert all(variable.name.startswith("OCTAVO_") and variable.doc.endswith(".") for variable in envs.VARIABLES)
