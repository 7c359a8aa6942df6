"""The catalogue's real files against Transformers' own reading of them."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo.config import ModelConfig
from octavo.loader.catalogue import pull
from octavo.loader.convert import convert
from octavo.loader.hf_config import normalize_config
from octavo.loader.resolve import resolve_reference
from octavo.loader.weights import iterate_weights
from octavo.tokenizer.tokenizer import load_tokenizer
from tests.loader.gguf_files import transformers_state

pytestmark = pytest.mark.slow

REAL = {"smollm2-135m-instruct": (272, (2,), "Q4_1"), "gemma-3-270m": (236, (1,), "Q4_K_M")}


@pytest.mark.parametrize("name", REAL)
def test_weights_and_config_equal_transformers_own_reading(name):
    num_tensors, eos_token_ids, file_type = REAL[name]
    spec = resolve_reference(ModelConfig(model=name))
    hf_config, expected = transformers_state(pull(name))
    assert (spec.eos_token_ids, spec.checkpoint_dtype) == (eos_token_ids, file_type)

    normalized = normalize_config(hf_config.to_dict())
    ours = dict(spec.hf_config)
    assert ours.pop("rms_norm_eps") == pytest.approx(normalized["rms_norm_eps"], rel=1e-6)
    assert ours == {key: normalized[key] for key in ours}

    seen = 0
    for tensor_name, weight in iterate_weights(spec, torch.float32):
        assert torch.equal(weight, expected[tensor_name].reshape(weight.shape)), tensor_name
        seen += 1
    assert seen == num_tensors == len(expected)


def test_converted_quickstart_model_answers_in_transformers(tmp_path):
    out = convert("smollm2-135m-instruct", tmp_path / "out", dtype="float32")
    tokenizer, model = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained(out)
    question = "What is the capital of France?"
    assert tokenizer(question).input_ids == load_tokenizer(str(pull("smollm2-135m-instruct"))).encode(question)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**chat, max_new_tokens=16, do_sample=False)[0, chat["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
