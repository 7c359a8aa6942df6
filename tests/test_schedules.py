"""Same request, same bits: random schedules on the real engine, every sequence held against itself alone.

Hypothesis draws requests, arrivals, aborts, pages, budgets, caches and threads (`tests/schedules/schedule.py`); what is
compared, and with what, is in `tests/schedules/world.py`. `scripts/fuzz` runs the same for longer.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from octavo.kernels.cpu import native
from octavo.ops.dispatch import IMPLS, OPS
from octavo.platforms.cpu import CpuPlatform
from octavo.tokenizer.tokenizer import load_tokenizer
from octavo.worker.sampling_state import SamplingState
from tests.schedules import faults
from tests.schedules.schedule import COMPANY, CROWD, Ask, Schedule
from tests.schedules.world import CELLS, Mismatch, World, checkpoint

module = native.load()
TIERS = module.tiers() if module is not None else []

SAMPLED = {"temperature": 1.0}
PAIR = Schedule(tuple(Ask(num_own=7 + 30 * i, max_tokens=8, seed=5, options=SAMPLED) for i in range(2)))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folder of all checkpoints."""
    return tmp_path_factory.mktemp("schedules")


@pytest.fixture
def make_world(root):
    """Worlds that are closed after the test; ops and threads are then what they were."""
    chosen = [(made, made.impl, made.provider) for made in OPS.values()]
    threads = module.num_threads() if module is not None else 1
    made = []

    def make(shape, dtype):
        made.append(World(checkpoint(root, shape), dtype))
        return made[-1]

    yield make
    for world in made:
        world.close()
    for op, impl, provider in chosen:
        op.impl, op.provider = impl, provider
    native.set_num_threads(threads)


@pytest.mark.parametrize(("shape", "dtype"), [("llama", "bfloat16"), ("gemma3", "float32")])
def test_a_request_has_the_same_bits_under_any_schedule(make_world, shape, dtype):
    make_world(shape, dtype).fuzz(4, start=1)


def test_what_matches_a_pattern_has_the_same_bits_after_preemptions_and_beside_others(make_world):
    world = make_world("llama", "float32")
    bound = [Ask(num_own=9 + i, max_tokens=24, n=2, seed=i, pattern="([0-9]{1,3},)+", options=SAMPLED) for i in (1, 2)]
    schedule = Schedule((*bound, Ask(num_own=20, max_tokens=24, options=SAMPLED)), spare_blocks=3, block_size=4)
    world.check(schedule)
    assert world.counts["preemptions"] > 0
    vocabulary = load_tokenizer(world.folder)
    for name, heard in world.run(schedule).items():
        text = vocabulary.decode(heard.token_ids)
        assert bool(re.fullmatch(r"([0-9]{1,3},)*[0-9]{0,3}", text)) is not name.startswith("2")


@pytest.mark.parametrize(("shape", "dtype"), [("wide-80", "float32"), ("wide-256", "bfloat16")])
def test_long_sums_and_ragged_widths_have_the_same_bits_in_a_step_of_many_tokens(make_world, shape, dtype):
    make_world(shape, dtype).check(CROWD)


def test_requests_that_share_pages_have_the_same_bits_as_alone(make_world):
    make_world("llama", "bfloat16").check(COMPANY)


def test_a_product_whose_sum_depends_on_the_number_of_rows_is_found(make_world, monkeypatch):
    monkeypatch.setitem(IMPLS._targets, "uneven/linear", "tests.schedules.faults:linear")
    monkeypatch.setattr(CpuPlatform, "providers", ("uneven", *CpuPlatform.providers))
    with pytest.raises(Mismatch):
        make_world("llama", "float32").fuzz(10, start=1)
    scoring = Ask(num_own=40, max_tokens=0, scored=True, options={"temperature": 0.0})
    with pytest.raises(Mismatch, match=r"prompt token 1 scores .* differ first at position 0, layer 0 of KV group 0"):
        make_world("llama", "float32").check(Schedule((scoring,), max_num_seqs=1, token_budget=7))


def test_a_sampler_keyed_by_row_is_found(make_world, monkeypatch):
    monkeypatch.setattr(SamplingState, "gather", faults.gather_by_row)
    with pytest.raises(Mismatch, match=r"1#0: answer token 0 is .* its keys and values up to there are the same"):
        make_world("llama", "bfloat16").check(PAIR)
    with pytest.raises(Mismatch, match=r"#\d: answer token \d+ is "):
        make_world("llama", "bfloat16").fuzz(10, start=1)


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("tier", TIERS)
def test_every_cell_of_a_tier_keeps_its_bits(root, tier):
    lines = fuzz_tier(root, tier, 18)
    cells = {line["cell"]: line["schedules"] for line in lines}
    assert set(cells) == set(CELLS) and min(cells.values()) >= 5
    assert all(cells[f"{shape}/{dtype}"] >= 10 for shape in ("llama", "gemma3") for dtype in ("float32", "bfloat16"))
    happened = sum((Counter({k: v for k, v in line.items() if isinstance(v, int)}) for line in lines), Counter())
    assert all(happened[what] > 0 for what in ("preemptions", "cached_tokens", "forks", "aborts")), happened


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_the_amx_kernel_keeps_its_bits_on_tiles_in_memory(root):
    fuzz_tier(root, "amx_software", 10, "llama/bfloat16", "gemma3/bfloat16", "wide-80/bfloat16")


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_plain_torch_keeps_its_bits_as_far_as_seen(root):
    fuzz_tier(root, "torch", 8, "llama/bfloat16", "llama/float32", "gemma3/bfloat16", "gemma3/float32")


@pytest.mark.slow
def test_another_process_gives_the_same_bits(root):
    first, again = (fuzz_tier(root, TIERS[-1] if TIERS else "torch", 5, "llama/bfloat16") for _ in range(2))
    assert first == again and first[0]["answers"] != "00000000"


def fuzz_tier(root, tier, num_schedules, *cells):
    """One line of numbers per cell, none of which has failed."""
    command = [sys.executable, "-m", "tests.schedules", "--tier", tier, "--folder", root]
    command += ["--schedules", str(num_schedules), *(["--cells", *cells] if cells else [])]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=900, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    errors = [line["error"] for line in lines if line["error"]]
    assert not errors, "\n\n".join(errors)
    assert done.returncode == 0, done.stderr
    return lines
