"""Fixtures: every instruction-set tier that this machine runs, and the thread counts that matter."""

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from octavo.kernels.cpu import native

TIERS = (native.load() or ModuleType("missing")).__dict__.get("tiers", list)()

PRODUCT_TIERS = [*TIERS, "amx_software"]
"""Products are tested on AMX tiles in plain memory too: the AMX kernel, on any machine."""


@pytest.fixture(scope="package", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """References are tiny here; torch's threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def kernels() -> Iterator[ModuleType]:
    """The compiled kernels, as they were afterwards. There is no running these tests without them."""
    module = native.load()
    assert module is not None, "the native kernels are not built; run `pip install -e .`"
    tier, threads = module.tier(), module.num_threads()
    yield module
    module.select_tier(tier)
    if module.num_threads() != threads:
        module.set_num_threads(threads)


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest, kernels: ModuleType) -> str:
    """Runs the test once per tier."""
    kernels.select_tier(request.param)
    return str(request.param)


@pytest.fixture(params=PRODUCT_TIERS)
def product_tier(request: pytest.FixtureRequest, kernels: ModuleType) -> str:
    """Runs the test once per tier that has products of its own."""
    kernels.select_tier(request.param)
    return str(request.param)


DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
