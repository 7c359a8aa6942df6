"""The real engine in its own process, beside the same engine in this one."""

import asyncio

import pytest

from octavo.engine.async_llm import AsyncLLM
from octavo.engine.resolve import make_config
from octavo.errors import ConfigError
from octavo.llm import LLM
from octavo.sampling_params import SamplingParams
from tests.engine.worlds import write_tokenizer
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_tokenizer(tiny_checkpoint("gemma3", tmp_path_factory.mktemp("gemma3"))))


OPTIONS = {"device": "cpu", "dtype": "float32", "threads": 1, "num_gpu_blocks_override": 64}
REQUESTS = [
    ("Hello", SamplingParams(temperature=0.0, max_tokens=20, logprobs=2, prompt_logprobs=1)),
    ("Hello you", SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=20, logit_bias={7: 3.0})),
    ([5, 6, 7], SamplingParams(temperature=0.7, top_k=9, max_tokens=20, stop=["e"], repetition_penalty=1.2)),
    ({"prompt": "a b", "cache_salt": "x"}, SamplingParams(max_tokens=5, bad_words=["a"], allowed_token_ids=[5, 6, 7])),
]


async def last_outputs(engine):
    """All samples of each request, as their last news left them."""

    async def collect(request_id, prompt, params):
        samples = {}
        async for output in engine.generate(prompt, params, request_id):
            samples.update({sample.index: sample for sample in output.outputs})
        return output.prompt_logprobs, [samples[index] for index in sorted(samples)]

    return await asyncio.gather(*(collect(str(i), *request) for i, request in enumerate(REQUESTS)))


def test_a_process_of_its_own_answers_as_this_one(folder):
    async def run():
        stages = []
        engine = AsyncLLM(make_config(model=folder, **OPTIONS))
        facts = await engine.start(lambda *stage: stages.append(stage))
        try:
            return facts, stages, await last_outputs(engine)
        finally:
            engine.close()

    facts, stages, outputs = asyncio.run(run())
    with LLM(folder, **OPTIONS) as llm:
        prompts, params = zip(*REQUESTS, strict=True)
        expected = llm.generate(list(prompts), list(params), use_tqdm=False)
        assert facts.num_blocks == llm.facts.num_blocks and facts.kv_groups == llm.facts.kv_groups
    assert [name for name, _, _ in stages][-1] == "loading weights" and stages[-1][1] == stages[-1][2]
    assert outputs == [(output.prompt_logprobs, output.outputs) for output in expected]


def test_a_pool_that_cannot_be_stops_the_start_with_its_reason(folder):
    async def run():
        await AsyncLLM(make_config(model=folder, **{**OPTIONS, "num_gpu_blocks_override": 1 << 40})).start()

    with pytest.raises(ConfigError, match=r"the KV pool of .* bytes does not fit"):
        asyncio.run(run())
