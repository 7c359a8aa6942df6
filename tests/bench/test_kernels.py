"""The table of kernels: what is compared computes the same, and how samples are taken. Nothing is timed."""

import json
from itertools import groupby
from pathlib import Path

import pytest
import torch

from octavo.bench.kernels.cases import COLD_BYTES, SUBJECTS, Case, Selection, select_cases
from octavo.bench.kernels.ceilings import measure_ceilings
from octavo.bench.kernels.measure import MIN_PAIRS, Sampler, compare
from octavo.cli import main
from octavo.cli.bench_kernels import parse_numbers
from octavo.errors import ConfigError

SHAPES = ((24, 16), (4, 2, 16, 40), (4, 2, 16), (32,))


def small_cases(op: str, m: int) -> list[Case]:
    return list(select_cases(Selection((op,), SHAPES, (m,), ("float32",), ("warm",))))


@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("op", SUBJECTS)
def test_both_sides_compute_the_same(op: str, m: int):
    torch.manual_seed(0)
    (case,) = small_cases(op, m)
    theirs, ours = case.theirs(0), case.ours(0)
    if op in ("decode", "prefill"):
        theirs = theirs.transpose(1, 2).reshape(ours.shape)  # [R, H, n, D] -> [T, H, D]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_cold_operands_take_more_than_the_caches_and_come_in_turn():
    (case,) = select_cases(Selection(("linear",), ((4096, 2048),), (1,), ("float32",), ("cold",)))
    copies = -(-COLD_BYTES // case.num_bytes)
    assert case.num_bytes == 4 * 4096 * 2048 and copies >= 4
    assert torch.equal(case.ours(0), case.ours(copies))


def test_work_is_counted():
    (linear,), (decode,), (prefill,) = (small_cases(op, 4) for op in ("linear", "decode", "prefill"))
    assert (linear.num_bytes, linear.flops) == (4 * 24 * 16, 2 * 4 * 24 * 16)
    assert (decode.num_bytes, decode.flops) == (4 * 2 * 4 * 2 * 40 * 16, 2 * 2 * 4 * 4 * 40 * 16)
    assert prefill.flops == 2 * 2 * 4 * 16 * (1 + 2 + 3 + 4)


def test_shapes_that_no_op_takes_are_refused():
    with pytest.raises(ConfigError, match="linear NxK"):
        list(select_cases(Selection(("linear",), ((1, 2, 3),))))


@pytest.mark.parametrize("text", ["", "0", "1,x", "-1", "1,,2"])
def test_numbers_are_whole_and_above_zero(text: str):
    with pytest.raises(ConfigError, match="--m"):
        parse_numbers("--m", text)
    assert parse_numbers("--shapes", "40x20", "x") == (40, 20)


def test_samples_alternate_and_every_call_has_a_number_of_its_own():
    order: list[str] = []
    numbers: dict[str, list[int]] = {"ours": [], "theirs": []}

    def call(side: str, number: int) -> None:
        order.append(side)
        numbers[side].append(number)

    found = compare(lambda i: call("ours", i), lambda i: call("theirs", i), 4, 60)
    assert [side for side, _ in groupby(order)] == ["theirs", "ours"] * 5  # to learn how long a call takes, then pairs
    assert found.pairs == 4 and all(seen == list(range(len(seen))) for seen in numbers.values())


def test_slow_cases_get_fewer_pairs():
    assert compare(lambda i: None, lambda i: None, 100, 0.0).pairs == MIN_PAIRS


def test_a_sample_of_short_calls_has_many():
    sampler = Sampler(lambda i: None)
    assert sampler.calls > 10 and sampler.sample_s() < 0.01


def test_ceilings_are_positive():
    assert all(value > 0 for value in measure_ceilings())


def test_the_command_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flags = ["--op", "rms_norm", "--shapes", "64", "--m", "2", "--dtype", "float32", "--memory", "warm"]
    assert main.run(["bench", "kernels", *flags, "--json", str(tmp_path / "k.json")]) == 0
    (case,) = json.loads((tmp_path / "k.json").read_text())["cases"]
    assert (case["op"], case["shape"], case["m"], case["memory"]) == ("rms_norm", "64", 2, "warm")
    assert "rms_norm" in capsys.readouterr().out
