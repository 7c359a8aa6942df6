"""A replayed plan gives the bits of the ops one by one, for every family; what has no plan runs all the same."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from octavo.attention.batch import ForwardBatch
from octavo.kernels.cpu import native
from octavo.models.base import CausalLM
from octavo.models.build import load_weights
from octavo.models.trace import named_inputs
from octavo.ops.dispatch import IMPLS, use_providers
from octavo.worker.forward import make_replay, planned_forward
from octavo.worker.worker import Worker
from tests.tiny import FAMILIES, PagedHarness, load_tiny, random_prompt, spec_for, tiny_checkpoint
from tests.worker.worlds import make_config

PROMPTS = [random_prompt(length, seed=length) for length in (60, 31, 7, 1, 90)]
MAX_TOKENS = len(PROMPTS) * 48 + 3


@pytest.fixture(autouse=True)
def native_ops(torch_references: None) -> None:
    """The ops run on the native kernels here, and are afterwards what they were."""
    use_providers(("cpu", "torch"))


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A random checkpoint of a family, made once."""
    made: dict[str, Path] = {}

    def folder_of(family: str) -> Path:
        if family not in made:
            made[family] = tiny_checkpoint(family, tmp_path_factory.mktemp(family))
        return made[family]

    return folder_of


def make_model(folder: Path, dtype: torch.dtype = torch.float32, **settings: Any) -> CausalLM:
    """A model whose weights and ops are native."""
    model = load_tiny(folder, dtype, **settings)
    use_providers(("cpu", "torch"))  # a family may have brought in ops of its own
    return model


def run(model: CausalLM, dtype: torch.dtype = torch.float32, planned: bool = False) -> list[Tensor]:
    """Logits of all prompts, in mixed batches with padding."""
    harness = PagedHarness(model, PROMPTS, seed=3, dtype=dtype)
    if planned:
        replay = make_replay(model, harness.pools, MAX_TOKENS)
        harness.forward = lambda batch: replay.run(
            named_inputs(batch), len(batch.input_ids), len(batch.attention[0].seq_lens)
        )
    return harness.run()


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    assert not any(logits.isnan().any() for logits in some)
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_gives_the_bits_of_the_ops_one_by_one(folder_of, family: str, dtype: torch.dtype) -> None:
    model = make_model(folder_of(family), dtype)
    assert same(run(model, dtype), run(model, dtype, planned=True))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_plan_gives_the_same_bits_on_any_number_of_threads(folder_of, threads: int) -> None:
    before = native.load().num_threads()
    model = make_model(folder_of("gemma2"), torch.bfloat16)
    expected = run(model, torch.bfloat16)
    native.set_num_threads(threads)
    try:
        assert same(expected, run(model, torch.bfloat16, planned=True))
    finally:
        native.set_num_threads(before)


def test_a_plan_uses_weights_that_were_written_after_it_was_made(folder_of, tmp_path: Path) -> None:
    model, newer = make_model(folder_of("qwen3")), make_model(tiny_checkpoint("qwen3", tmp_path, seed=1))
    harness = PagedHarness(model, PROMPTS, seed=3)
    harness.forward = planned_forward(model, harness.pools, MAX_TOKENS)
    load_weights(model, load_file(tmp_path / "model.safetensors").items(), "newer")
    assert same(harness.run(), run(newer))


def test_a_step_larger_than_the_plan_is_refused(folder_of) -> None:
    model = make_model(folder_of("llama"))
    harness = PagedHarness(model, [random_prompt(40)])
    harness.forward = planned_forward(model, harness.pools, 39)
    with pytest.raises(ValueError, match="a step of 40 tokens does not fit a plan made for 39"):
        harness.compute([0], [40])


def test_embeddings_in_place_of_ids_run_op_by_op(folder_of) -> None:
    model = make_model(folder_of("llama"))
    harness = PagedHarness(model, PROMPTS, seed=3)
    forward = planned_forward(model, harness.pools, MAX_TOKENS)

    def with_embeddings(batch: ForwardBatch) -> Tensor:
        batch.inputs_embeds = model.model.embed_tokens(batch.input_ids)
        batch.input_ids = torch.zeros_like(batch.input_ids)
        return forward(batch)

    harness.forward = with_embeddings
    assert same(harness.run(), run(model))


def test_a_model_without_a_plan_runs_op_by_op_and_says_why(folder_of, caplog) -> None:
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = make_model(folder_of("llama"), rope_parameters=dynamic)
    with caplog.at_level(logging.INFO):
        forward = planned_forward(model, PagedHarness(model, PROMPTS).pools, MAX_TOKENS)
    assert forward == model.forward
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("the model runs op by op, not as a plan: it calls aten.")


def test_ops_of_a_provider_without_replay_run_op_by_op(folder_of, caplog, monkeypatch) -> None:
    monkeypatch.setitem(IMPLS._targets, "uneven/linear", "tests.schedules.faults:linear")
    model = make_model(folder_of("llama"))
    use_providers(("uneven", "cpu", "torch"))
    with caplog.at_level(logging.INFO):
        assert planned_forward(model, PagedHarness(model, PROMPTS).pools, MAX_TOKENS) == model.forward
    assert "linear is provided by uneven" in caplog.text


def test_an_op_without_native_record_is_named(folder_of, caplog) -> None:
    model = make_model(folder_of("llama"))
    model.model.norm.weight = model.model.norm.weight.double()
    with caplog.at_level(logging.INFO):
        assert planned_forward(model, PagedHarness(model, PROMPTS).pools, MAX_TOKENS) == model.forward
    assert "the native add_rms_norm does not cover what it gets here" in caplog.text


@pytest.mark.parametrize("eager", [False, True])
def test_a_worker_replays_a_plan_unless_told_otherwise(folder_of, eager: bool) -> None:
    config = make_config(spec=spec_for(folder_of("llama")), enforce_eager=eager)
    worker = Worker(config)
    worker.load(lambda *report: None)
    worker.allocate_kv((8,))
    assert (worker._runner._forward == worker._model.forward) == eager


def test_without_native_kernels_a_model_runs_op_by_op(folder_of, monkeypatch) -> None:
    monkeypatch.setattr("octavo.kernels.cpu.plan._native", None)
    model = make_model(folder_of("llama"))
    assert planned_forward(model, PagedHarness(model, PROMPTS).pools, MAX_TOKENS) == model.forward
