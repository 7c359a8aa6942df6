"""Workload files and made workloads."""

from pathlib import Path

import pytest

from octavo.bench.workload import WorkItem, random_workload, read_workload
from octavo.errors import ConfigError


def test_lines_become_items(tmp_path: Path):
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt": [1, 2], "out": 3}\n{"prompt": [4], "out": 1, "note": "ignored"}\n')
    assert read_workload(str(path)) == [WorkItem([1, 2], 3), WorkItem([4], 1)]


def test_lines_with_times_come_in_the_order_of_arrival(tmp_path: Path):
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt": [1], "out": 1, "at": 2.5}\n{"prompt": [2], "out": 1}\n{"prompt": [3], "out": 1}\n')
    assert read_workload(str(path)) == [WorkItem([2], 1), WorkItem([3], 1), WorkItem([1], 1, 2.5)]


BAD_LINES = ['{"prompt": "text", "out": 3}', '{"prompt": [1]}', "{", '{"prompt": [1], "out": 1, "at": -1}']


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_refused_by_number(tmp_path: Path, line: str):
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt": [1], "out": 1}\n' + line + "\n")
    with pytest.raises(ConfigError, match=r"w\.jsonl line 2"):
        read_workload(str(path))


@pytest.mark.parametrize("name", ["missing.jsonl", "empty.jsonl"])
def test_no_requests_is_an_error(tmp_path: Path, name: str):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigError, match=name):
        read_workload(str(tmp_path / name))


def test_a_made_workload_repeats_with_its_seed_and_stays_in_the_vocabulary():
    items = random_workload(5, 8, 2, vocab_size=10, seed=1)
    assert items == random_workload(5, 8, 2, vocab_size=10, seed=1) != random_workload(5, 8, 2, vocab_size=10, seed=2)
    assert all(len(i.prompt_token_ids) == 8 and max(i.prompt_token_ids) < 10 and i.output_tokens == 2 for i in items)
