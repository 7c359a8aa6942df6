"""Specs of tests' files: what `resolve_reference` finds out about a path."""

from pathlib import Path
from typing import Any

from octavo.config import ModelConfig, ModelSpec
from octavo.loader.resolve import resolve_reference


def spec_of(path: Path, **options: Any) -> ModelSpec:
    """The spec of a folder or .gguf file."""
    return resolve_reference(ModelConfig(model=str(path), **options))
