"""A GGUF file runs as the folder it was made from: our model on its weights and config against Transformers."""

import pytest
import torch

from octavo.loader.weights import iterate_weights
from octavo.models.build import load_model
from tests.loader.gguf_files import add_rope_freqs, write_gguf
from tests.loader.specs import spec_of
from tests.tiny import FAMILIES, PagedHarness, random_prompt, reference_logits

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
DIVISORS = [1.0, 1.5, 1.25, 2.0, 3.0, 3.5, 4.0, 7.0]


def assert_same_logits(path, folder) -> None:
    """Over a prompt longer than the window and the original length of the scaled ropes."""
    spec, prompt = spec_of(path), random_prompt(200)
    weights = iterate_weights(spec, torch.float32)
    model = load_model(spec, torch.float32, torch.device("cpu"), weights)
    (ours,) = PagedHarness(model, [prompt]).run()
    torch.testing.assert_close(ours, reference_logits(folder, prompt), rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mistral"])
def test_logits_of_every_family(checkpoint, tmp_path, family):
    folder = checkpoint(family)
    assert_same_logits(write_gguf(folder, tmp_path / "m.gguf"), folder)


def test_rope_freqs_tensor_of_llama3(checkpoint, tmp_path):
    folder = checkpoint("llama", rope_parameters=LLAMA3, max_position_embeddings=64)
    assert_same_logits(write_gguf(folder, tmp_path / "m.gguf"), folder)


def test_rope_freqs_tensor_of_any_other_kind(checkpoint, tmp_path):
    explicit = {"rope_type": "longrope", "factor": 1.0, "attention_factor": 1.0, "rope_theta": 10000.0}
    folder = checkpoint("llama", rope_parameters={**explicit, "short_factor": DIVISORS, "long_factor": DIVISORS})
    path = write_gguf(checkpoint("llama"), tmp_path / "m.gguf", extra=lambda writer: add_rope_freqs(writer, DIVISORS))
    assert_same_logits(path, folder)


def test_rope_freqs_that_were_left_out_would_be_noticed(checkpoint, tmp_path):
    folder = checkpoint("llama", rope_parameters=LLAMA3, max_position_embeddings=512)
    path = write_gguf(checkpoint("llama"), tmp_path / "m.gguf")
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        assert_same_logits(path, folder)
