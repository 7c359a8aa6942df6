"""Imported before any test: `octavo` says how OpenMP's threads wait, which they read when torch is first imported. Left
to spin, they take the processor from whatever else runs on a busy machine, and tests take many times as long.
"""

import signal
from collections.abc import Iterator

import pytest

import octavo  # noqa: F401  first, see above
from octavo.ops.dispatch import OPS, use_providers

# A shell without job control starts background jobs with Ctrl-C ignored, and children inherit that; tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def torch_references() -> Iterator[None]:
    """Run on the torch references, whatever an engine has chosen before, and give the ops their kernels back after."""
    chosen = [(made, made.impl, made.provider) for made in OPS.values()]
    use_providers(("torch",))
    yield
    for made, impl, provider in chosen:
        made.impl, made.provider = impl, provider
