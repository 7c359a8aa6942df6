"""Random checkpoints of the families, made once for all tests of the loader."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import tiny_checkpoint

GGUF_SETTINGS: dict[str, dict[str, Any]] = {
    # GGUF does not store the query scale of Gemma, nor a window of Qwen.
    "gemma2": {"query_pre_attn_scalar": 24},
    "gemma3": {"query_pre_attn_scalar": 24},
    "qwen2": {"use_sliding_window": False},
}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`checkpoint(family, **overrides)`: a Transformers folder whose config a GGUF file can express."""
    made: dict[str, Path] = {}

    def make(family: str, **overrides: Any) -> Path:
        key = f"{family} {sorted(overrides.items())!r}"
        if key not in made:
            settings = {**GGUF_SETTINGS.get(family, {}), **overrides}
            made[key] = tiny_checkpoint(family, tmp_path_factory.mktemp(family), **settings)
        return made[key]

    return make
