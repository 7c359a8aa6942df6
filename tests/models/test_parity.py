"""Logits of every family and every rope scaling (case WGT-05) equal those of Transformers, however pages are filled.

The comparison is sharp: models with one detail wrong, far smaller than a bug usually is, fail it.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.kernels.cpu import native
from octavo.layers.norm import GemmaRMSNorm, RMSNorm
from octavo.ops.dispatch import use_providers
from tests.tiny import (
    FAMILIES,
    SCALINGS,
    WINDOW,
    PagedHarness,
    Prefix,
    load_tiny,
    random_prompt,
    reference_logits,
    reference_model,
    run_model,
    run_whole,
    scaled_checkpoint,
    spec_for,
    tiny_checkpoint,
)

PROMPT = random_prompt(200)


def assert_parity(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Tensor]]:
    """Checkpoint folder and Transformers' logits of PROMPT, by family or rope scaling; each made once."""

    @cache
    def make(name: str) -> tuple[Path, Tensor]:
        folder = tmp_path_factory.mktemp(name)
        if name in FAMILIES:
            tiny_checkpoint(name, folder)
        else:
            scaled_checkpoint(name, folder)
        return folder, reference_logits(folder, PROMPT)

    return make


@pytest.mark.parametrize("name", [*FAMILIES, *SCALINGS])
def test_wgt_05_chunked_mixed_batches_over_shuffled_pages_equal_one_pass_of_transformers(name: str, world: Any) -> None:
    folder, expected = world(name)
    model = load_tiny(folder)
    others = [random_prompt(150, seed=1), random_prompt(90, seed=2)]
    for seed, block_size in ((0, 4), (1, 16)):
        logits = run_model(model, [PROMPT, *others], seed=seed, block_size=block_size)
        assert_parity(logits[0], expected)
    assert_parity(logits[1], reference_logits(folder, others[0]))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3"])
def test_a_shared_prefix_gives_the_logits_of_a_run_without_one(name: str, world: Any) -> None:
    folder, expected = world(name)
    donor = PROMPT[:64] + random_prompt(30, seed=5)
    logits = run_model(load_tiny(folder), [donor, PROMPT], prefixes={1: Prefix(donor=0, num_tokens=64)})
    assert logits[1][:64].isnan().all()
    assert_parity(logits[1][64:], expected[64:])


def test_llama_with_biases_everywhere(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", tmp_path, attention_bias=True, mlp_bias=True, hidden_act="gelu")
    assert_parity(run_model(load_tiny(folder), [PROMPT])[0], reference_logits(folder, PROMPT))


def test_gemma_3_with_a_scaled_rope_in_full_layers_only(tmp_path: Path) -> None:
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    folder = tiny_checkpoint("gemma3", tmp_path, rope_parameters=ropes)
    assert_parity(run_model(load_tiny(folder), [PROMPT])[0], reference_logits(folder, PROMPT))


def test_longrope_has_its_short_factors_in_an_engine_that_stays_below_the_original_length(world: Any) -> None:
    folder, _ = world("longrope")
    logits = run_whole(load_tiny(folder, max_model_len=64), PROMPT[:64])
    assert_parity(logits, reference_logits(folder, PROMPT[:64]))


@pytest.mark.filterwarnings("ignore:.*past_key_values:FutureWarning")  # `cache` in later releases of Transformers
@pytest.mark.parametrize("num_prompt", [10, 64, 65, 150, 200])
def test_dynamic_ntk_is_that_of_transformers_for_a_prompt_and_what_is_generated_after_it(
    tmp_path: Path, num_prompt: int
) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    folder = tiny_checkpoint("llama", tmp_path, rope_parameters=rope, max_position_embeddings=64)
    model, cached, theirs = reference_model(folder), None, []
    for step in [PROMPT[:num_prompt], *([token] for token in PROMPT[num_prompt:])]:
        with torch.no_grad():
            output = model(torch.tensor([step]), past_key_values=cached, use_cache=True)
        cached = output.past_key_values
        theirs.append(output.logits[0])
    ours = run_model(load_tiny(folder, max_model_len=200), [PROMPT], num_prompt=num_prompt)[0]
    assert_parity(ours, torch.cat(theirs))


def theta_scaled(config: dict[str, Any], factor: float) -> dict[str, Any]:
    """rope_parameters with every base multiplied."""
    rope = config["rope_parameters"]
    scaled = (
        {kind: {**one, "rope_theta": one["rope_theta"] * factor} for kind, one in rope.items()}
        if ("rope_type" not in rope)
        else {**rope, "rope_theta": rope["rope_theta"] * factor}
    )
    return {"rope_parameters": scaled}


MUTANTS: list[tuple[str, str, Callable[[dict[str, Any]], dict[str, Any]]]] = [
    *((family, "rope base", lambda c: theta_scaled(c, 1.01)) for family in [*FAMILIES, *SCALINGS]),
    *((scaling, "no scaling", lambda c: {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})
      for scaling in SCALINGS),
    *((family, f"window {shift:+}", lambda c, shift=shift: {"sliding_window": WINDOW + shift})
      for family in ("mistral", "qwen2", "gemma2", "gemma3") for shift in (-1, 1)),
    *((family, "layer kinds", lambda c: {"layer_types": c["layer_types"][::-1]}) for family in ("qwen2", "gemma2")),
    *((family, "epsilon", lambda c: {"rms_norm_eps": 1e-3}) for family in FAMILIES),
    ("smollm3", "rope everywhere", lambda c: {"no_rope_layers": [1] * 4}),
    ("gemma2", "score cap", lambda c: {"attn_logit_softcapping": None}),
    ("gemma2", "logit cap", lambda c: {"final_logit_softcapping": None}),
    ("gemma2", "query scale", lambda c: {"query_pre_attn_scalar": 24}),
    ("gemma3", "query scale", lambda c: {"query_pre_attn_scalar": 24}),
    ("gemma3", "ropes swapped", lambda c: {"rope_parameters": dict(zip(
        c["rope_parameters"], reversed(c["rope_parameters"].values()), strict=True))}),
    *(("granite", key, lambda c, key=key: {key: 1.0})
      for key in ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "detail", "mutate"), MUTANTS, ids=[f"{n}-{d}" for n, d, _ in MUTANTS])
def test_the_comparison_rejects_a_wrong(name: str, detail: str, mutate: Any, world: Any) -> None:
    folder, expected = world(name)
    mutant = load_tiny(folder, **mutate(spec_for(folder).hf_config))
    with pytest.raises(AssertionError, match="not close"):
        assert_parity(run_whole(mutant, PROMPT), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_comparison_rejects_a_wrong_norm_offset(family: str, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    offset = {RMSNorm: 1.0, GemmaRMSNorm: 0.0}
    for norm, wrong in offset.items():
        monkeypatch.setattr(norm, "write", lambda self, rows, _, wrong=wrong: self.weight.copy_(rows).add_(wrong))
    folder, expected = world(family)
    with pytest.raises(AssertionError, match="not close"):
        assert_parity(run_whole(load_tiny(folder), PROMPT), expected)


def test_pages_keep_what_was_computed_when_a_step_is_repeated(world: Any) -> None:
    folder, expected = world("qwen3")
    harness = PagedHarness(load_tiny(folder), [PROMPT])
    harness.compute([0], [120])
    harness.sequences[0].num_computed = 100  # as after a preemption that lost the last tokens
    harness.compute([0], [100])
    assert_parity(harness.logits[0], expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bits_of_the_torch_references_do_not_depend_on_the_schedule(family: str, world: Any) -> None:
    folder, _ = world(family)
    model, other = load_tiny(folder), random_prompt(60, seed=3)
    whole = run_whole(model, PROMPT)
    for seed in range(2):
        assert torch.equal(run_model(model, [PROMPT, other], seed=seed)[0], whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_native_kernels_give_the_logits_of_transformers(family: str, world: Any) -> None:
    if native.load() is None:
        pytest.xfail("the native kernels are not built on this machine")
    folder, expected = world(family)
    model = load_tiny(folder)
    try:
        chosen = use_providers(("cpu",))
        logits = run_model(model, [PROMPT, random_prompt(90, seed=2)])[0]
    finally:
        use_providers(())
    assert chosen["paged_attention"] == "cpu"
    assert_parity(logits, expected)


@pytest.mark.parametrize("family", ["llama", "gemma3", "granite"])
def test_bfloat16_stays_near_float32(family: str, world: Any) -> None:
    folder, expected = world(family)
    model = load_tiny(folder, dtype=torch.bfloat16)
    logits = run_model(model, [PROMPT], dtype=torch.bfloat16)[0]
    assert logits.dtype == torch.float32
    similarity = torch.nn.functional.cosine_similarity(logits, expected, dim=-1)
    assert similarity.min() > 0.98 and similarity.mean() > 0.998
