"""The byte-level fuzzer on a server of the random model, and the fuzzer itself."""

from pathlib import Path

import pytest

from tests.server.fuzz import fuzz, make_request
from tests.server.world import serve_app


@pytest.mark.parametrize(("seed", "count"), [(1, 200), pytest.param(2, 1000, marks=pytest.mark.slow)])
def test_spoiled_bodies_hurt_nobody(
    random_folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int, count: int
) -> None:
    monkeypatch.setenv("OCTAVO_MAX_N_SEQUENCES", "16")
    with serve_app(random_folder, max_model_len=256) as world:
        assert fuzz(world, seed, count=count) == count
        statuses = [
            world.http.post(path, content=data).status_code
            for path, data in map(make_request, "abcdefghijklmnopqrstuvwx")
        ]
        assert 200 in statuses and 400 in statuses


def test_a_seed_repeats_its_request() -> None:
    assert make_request("3/4") == make_request("3/4") != make_request("3/5")
