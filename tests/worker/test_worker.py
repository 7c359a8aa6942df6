"""A real model, end to end on one device: start-up, memory, and the tokens that Transformers generates."""

from pathlib import Path

import pytest
import torch

from octavo.config import EngineConfig
from octavo.errors import ConfigError, ModelError
from octavo.executor.registry import EXECUTORS
from octavo.messages import NewRow, SchedulerOutput
from octavo.ops.dispatch import OPS, use_providers
from octavo.sampling_params import SamplingParams
from octavo.worker.worker import Worker
from tests.tiny import VOCAB_SIZE, random_prompt, reference_model, spec_for, tiny_checkpoint
from tests.worker.worlds import make_config

PROMPT_LENS = (5, 21, 33)
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(autouse=True)
def _providers_as_before():
    before = {name: (made.impl, made.provider) for name, made in OPS.items()}
    yield
    use_providers(("torch",))
    for name, (impl, provider) in before.items():
        OPS[name].impl, OPS[name].provider = impl, provider


def config_of(folder: Path, **cache: object) -> EngineConfig:
    return make_config(max_model_len=64, token_budget=128, spec=spec_for(folder), **cache)


def test_load_reports_progress_and_the_kv_groups(folder: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    groups = Worker(config_of(folder)).load(lambda *report: reports.append(report))
    assert [(g.name, g.num_layers, g.num_kv_heads, g.head_dim) for g in groups] == [("full", 3, 2, 16)]
    done = [report[1] for report in reports]
    assert done == list(range(len(reports))) and reports[-1][1] == reports[-1][2] == len(reports) - 1 > 20
    assert {report[0] for report in reports} == {"loading weights"}


@pytest.mark.parametrize("size", ["vocab_size", "hidden_size", "intermediate_size"])
def test_a_wrong_size_is_refused_by_name_before_memory_is_asked_for(folder: Path, size: str) -> None:
    reports: list[tuple[str, int, int]] = []
    spec = spec_for(folder, **{size: 10**12})
    with pytest.raises(ModelError, match=r"tensor '.*' is \[.*\] but the config says \[.*1000000000000"):
        Worker(make_config(max_model_len=64, token_budget=128, spec=spec)).load(lambda *report: reports.append(report))
    assert not reports


def test_pages_that_do_not_fit_are_refused_with_their_bytes(folder: Path) -> None:
    worker = Worker(config_of(folder))
    worker.load(lambda *report: None)
    page_bytes = 2 * 3 * 2 * 16 * 4 * 4
    assert 0 < worker.free_bytes_for_kv() <= 4 << 30
    with pytest.raises(ConfigError, match=f"{page_bytes << 40} bytes does not fit: [0-9]+ bytes are free on cpu"):
        worker.allocate_kv((1 << 40,))


@pytest.mark.parametrize("chunk", [64, 7])
def test_greedy_tokens_equal_those_of_transformers(folder: Path, chunk: int) -> None:
    executor = EXECUTORS.load("uni")(config_of(folder))
    executor.load(lambda *report: None)
    executor.allocate_kv((48,))
    sequences = [random_prompt(length) for length in PROMPT_LENS]
    prompts = [sequence[:] for sequence in sequences]
    computed = [0] * len(sequences)
    for step in range(40):
        rows = [r for r in range(len(sequences)) if len(sequences[r]) < PROMPT_LENS[r] + NUM_TOKENS]
        counts = [min(chunk, len(sequences[r]) - computed[r]) for r in rows]
        samples = [computed[r] + count == len(sequences[r]) for r, count in zip(rows, counts, strict=True)]
        plan = SchedulerOutput(
            step=step,
            new_rows=[seat(r, sequences[r]) for r in rows] if step == 0 else [],
            rows=rows,
            num_tokens=counts,
            num_computed_tokens=[computed[r] for r in rows],
            samples=samples,
        )
        executor.execute(plan)
        output = executor.sample(plan).result(timeout=0)
        for r, count in zip(rows, counts, strict=True):
            computed[r] += count
        for r, token_ids in zip(output.rows, output.token_ids, strict=True):
            sequences[r] += token_ids
    executor.close()
    model = reference_model(folder)
    for prompt, sequence in zip(prompts, sequences, strict=True):
        expected = list(prompt)
        with torch.no_grad():
            for _ in range(NUM_TOKENS):
                expected.append(int(model(torch.tensor([expected]), use_cache=False).logits[0, -1].argmax()))
        assert sequence == expected
        assert max(sequence) < VOCAB_SIZE


def seat(row: int, token_ids: list[int]) -> NewRow:
    return NewRow(
        request_id=str(row),
        row=row,
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        num_computed_tokens=0,
        block_ids=[list(range(16 * row, 16 * row + 16))],
        sampling=SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS),
        eos_token_ids=[],
        bad_words_token_ids=[],
        seed=0,
        sample_index=0,
    )
