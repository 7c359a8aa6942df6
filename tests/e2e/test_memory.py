"""The fault case of the class "memory", a tenth of its requests; all of them with `OCTAVO_TEST_MINUTES`, which is the
nightly size, or by `scripts/soak`.
"""

import os
from collections.abc import Iterator

import pytest

from tests.e2e.served import Served
from tests.e2e.soak import PHASES, Phase, soak, warm_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCALE = 1.0 if os.environ.get("OCTAVO_TEST_MINUTES") else 0.1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with warm_server(tmp_path_factory.mktemp("memory")) as it:
        yield it


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.job.__name__)
def test_mem_01_nothing_grows_with_requests(server: Served, phase: Phase) -> None:
    soak(server, phase, round(max(1000, phase.count * SCALE)), lambda: None)
