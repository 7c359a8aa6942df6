"""Every family and every rope scaling (WGT-05) through the whole engine, with everything on that could change a number,
against Transformers.

Prompts come in chunks of a few tokens, share cached pages, run together in a pool that is too small for them, and are
preempted and computed again. Judged per position on float32 logprobs, so a wrong mask, rope, window or page shows.
"""

import random

import pytest
import torch

from octavo.llm import LLM
from octavo.sampling_params import SamplingParams
from tests.engine.worlds import write_tokenizer
from tests.tiny import FAMILIES, SCALINGS, VOCAB_SIZE, reference_model, scaled_checkpoint, tiny_checkpoint

LENGTH = 200
MAX_TOKENS = 24


@pytest.mark.parametrize("name", [*FAMILIES, *SCALINGS])
def test_wgt_05_chunked_cached_and_preempted_requests_equal_transformers(name, tmp_path):
    write = tiny_checkpoint if name in FAMILIES else scaled_checkpoint
    folder = write_tokenizer(write(name, tmp_path))
    choose = random.Random(name)
    shared = [choose.randrange(3, VOCAB_SIZE) for _ in range(96)]
    prompts = [shared + [choose.randrange(3, VOCAB_SIZE) for _ in range(LENGTH - MAX_TOKENS - 96)] for _ in range(4)]
    scored = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    cached = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=0)
    options = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 4, "max_num_batched_tokens": 40}
    # Mistral has windows only: its sequences let go of pages as they take new ones.
    num_blocks = 9 if name == "mistral" else 24
    with LLM(str(folder), num_gpu_blocks_override=num_blocks, **options) as llm:
        outputs = llm.generate(prompts, scored, use_tqdm=False)
        outputs += llm.generate(prompts, cached, use_tqdm=False)
        assert llm.stats().num_preemptions > 0
        assert any(output.num_cached_tokens > 0 for output in outputs[4:])
    reference = reference_model(folder)
    for output in outputs:
        sample = output.outputs[0]
        sequence = output.prompt_token_ids + sample.token_ids
        with torch.no_grad():
            expected = reference(torch.tensor([sequence]), use_cache=False).logits[0].log_softmax(-1)
        entries = (output.prompt_logprobs or [])[1:] + sample.logprobs
        tokens = sequence[-len(entries) :]
        got = torch.tensor([entry[token_id].logprob for entry, token_id in zip(entries, tokens, strict=True)])
        positions = torch.arange(LENGTH - len(entries) - 1, LENGTH - 1)
        torch.testing.assert_close(got, expected[positions, torch.tensor(tokens)], atol=1e-4, rtol=0)
        assert sample.token_ids == expected[LENGTH - MAX_TOKENS - 1 : -1].argmax(-1).tolist()


@pytest.mark.filterwarnings("ignore:.*past_key_values:FutureWarning")  # `cache` in later releases of Transformers
def test_prompts_of_other_lengths_do_not_mix_under_a_rope_that_grows_with_the_length(tmp_path):
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    folder = write_tokenizer(tiny_checkpoint("llama", tmp_path, rope_parameters=rope, max_position_embeddings=64))
    choose = random.Random(0)
    longest = [choose.randrange(3, VOCAB_SIZE) for _ in range(150)]
    prompts = [longest[:length] for length in (150, 120, 60, 120, 70, 60)]
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    options = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 3, "max_num_batched_tokens": 40}
    with LLM(str(folder), num_gpu_blocks_override=14, **options) as llm:
        outputs = [llm.generate(prompt, greedy, use_tqdm=False)[0] for prompt in prompts]
        outputs += llm.generate(prompts, greedy, use_tqdm=False)
        assert llm.stats().num_preemptions > 0
        assert [output.num_cached_tokens > 0 for output in outputs[:6]] == [False, False, False, True, False, True]
    for output in outputs:
        reference = reference_model(folder)  # a used one keeps the base of the longest sequence it has seen
        token_ids, cached, step = [], None, output.prompt_token_ids
        for _ in range(24):
            with torch.no_grad():
                result = reference(torch.tensor([step]), past_key_values=cached, use_cache=True)
            cached, step = result.past_key_values, [int(result.logits[0, -1].argmax())]
            token_ids += step
        assert output.outputs[0].token_ids == token_ids
