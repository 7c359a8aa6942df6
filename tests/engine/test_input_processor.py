from dataclasses import replace

import pytest

from octavo.engine.input_processor import InputProcessor, default_sampling_params, derive_seed
from octavo.errors import ClientError, ConfigError, UnsupportedError
from octavo.sampling_params import SamplingParams
from octavo.tokenizer.tokenizer import load_tokenizer
from tests.engine.worlds import make_engine_config, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def process(tokenizer):
    """Process one prompt on a fresh processor with 64 tokens of context."""

    def run(prompt="hello", *, limit=64, model=None, **params):
        processor = InputProcessor(make_engine_config(context_length=64, model=model), tokenizer, limit)
        return processor.process(prompt, SamplingParams(**params), "r")

    return run


def test_a_prompt_has_four_forms(process, tokenizer):
    ids = tokenizer.encode("hello")
    for prompt in ("hello", {"prompt": "hello"}, {"prompt_token_ids": ids, "prompt": "hello"}):
        assert (process(prompt).prompt, process(prompt).prompt_token_ids) == ("hello", ids)
    assert (process(ids).prompt, process(ids).prompt_token_ids) == (None, ids)
    assert process({"prompt": "hello", "cache_salt": "s"}).sequences[0].cache_salt == "s"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ([5, 96], "token id 96 but the vocabulary ends at 95"),
        ([-1], "token id -1"),
        ([5, "6"], "list of whole numbers"),
        ([True], "list of whole numbers"),
        ({}, "neither"),
        ({"prompt": 5}, "must be text"),
        ("x" * 64, "prompt has 64 tokens but prompt and answer together may have 64"),
        ("x" * 65, "prompt has 65 tokens"),
    ],
)
def test_a_bad_prompt_is_refused(process, prompt, message):
    with pytest.raises(ClientError, match=message) as caught:
        process(prompt)
    assert caught.value.param == "prompt"


def test_inputs_of_later_versions_are_refused_by_name(process):
    with pytest.raises(UnsupportedError, match="multi_modal_data is not supported"):
        process({"prompt": "x", "multi_modal_data": {}})


def test_open_max_tokens_take_the_room_there_is(process):
    assert process("x" * 60, max_tokens=None).sequences[0].sampling.max_tokens == 4
    assert process("x" * 64, max_tokens=0).sequences[0].sampling.max_tokens == 0
    with pytest.raises(ClientError, match=r"prompt has 60 tokens and max_tokens is 5 .* 64"):
        process("x" * 60, max_tokens=5)
    with pytest.raises(ClientError, match="min_tokens is 5 but the prompt leaves room for 4"):
        process("x" * 60, max_tokens=None, min_tokens=5)


def test_a_pool_smaller_than_the_context_refuses_prompts_but_not_answers(process):
    assert process("x" * 30, limit=40, max_tokens=None).sequences[0].sampling.max_tokens == 10
    assert process("x" * 30, limit=40, max_tokens=20).sequences[0].sampling.max_tokens == 20
    with pytest.raises(ClientError, match=r"prompt has 41 tokens .* may have 40"):
        process("x" * 41, limit=40)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"stop_token_ids": [96]}, "stop_token_ids"),
        ({"allowed_token_ids": [3, 96]}, "allowed_token_ids"),
        ({"logit_bias": {96: 1.0}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"stop": ["x"], "detokenize": False}, "stop"),
        ({"allowed_token_ids": [5], "bad_words": ["a"]}, "allowed_token_ids"),
        ({"allowed_token_ids": [2], "min_tokens": 1}, "allowed_token_ids"),
    ],
)
def test_parameters_that_do_not_fit_the_model_are_refused(process, params, param):
    with pytest.raises(ClientError) as caught:
        process(**params)
    assert caught.value.param == param


def test_any_number_of_logprobs_can_be_allowed(process):
    assert process(model={"max_logprobs": -1}, logprobs=-1).sequences[0].sampling.logprobs == -1


def test_bad_words_are_banned_with_and_without_a_leading_space(process, tokenizer):
    bare, spaced = (tokenizer.encode(text) for text in ("New York", " New York"))
    for word in ("New York", " New York"):
        assert process(bad_words=[word]).sequences[0].bad_words_token_ids == [bare, spaced]


def test_samples_share_prompt_and_seed_and_fork_from_the_first(process):
    submission = process(n=3, seed=5, prompt_logprobs=1)
    assert [s.request_id for s in submission.sequences] == ["r#0", "r#1", "r#2"]
    assert [s.fork_of for s in submission.sequences] == [None, "r#0", "r#0"]
    assert [(s.seed, s.sample_index) for s in submission.sequences] == [(5, 0), (5, 1), (5, 2)]
    assert [s.sampling.prompt_logprobs for s in submission.sequences] == [1, None, None]
    assert [s.request_id for s in process().sequences] == ["r"]


def test_unseeded_requests_get_seeds_that_differ_and_repeat_with_the_engine_seed(tokenizer):
    def seeds(engine_seed):
        processor = InputProcessor(make_engine_config(model={"seed": engine_seed}), tokenizer, 64)
        return [processor.process("x", SamplingParams(), f"r{i}").seed for i in range(50)]

    assert seeds(0) == seeds(0) == [derive_seed(0, i) for i in range(50)]
    assert len({*seeds(0), *seeds(1)}) == 100
    assert all(int(float(seed)) == seed for seed in seeds(0))  # as JavaScript reads it
    assert all(0 <= seed < 2**63 for seed in seeds(3))


def test_sampling_defaults_come_from_the_model_unless_told_otherwise():
    stored = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 99, "transformers_version": "5"}

    def defaults(**model):
        return default_sampling_params(make_engine_config(generation_config=stored, model=model))

    assert defaults() == {"temperature": 0.6, "top_k": 20, "max_tokens": 99}
    assert defaults(generation_config="vllm") == {}
    assert defaults(override_generation_config='{"top_p": 0.5, "top_k": 7}')["top_k"] == 7
    with pytest.raises(ConfigError, match="unknown key 'topp'"):
        defaults(override_generation_config='{"topp": 0.5}')
    with pytest.raises(ConfigError, match="must be a JSON object"):
        defaults(override_generation_config="[1]")
    with pytest.raises(ConfigError, match="is not JSON"):
        defaults(override_generation_config="{")


def test_prompts_share_pages_under_a_dynamic_rope_only_while_their_length_does_not_matter(tokenizer):
    config = make_engine_config(context_length=64)
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    spec = replace(config.spec, hf_config={"rope_parameters": rope, "max_position_embeddings": 8})
    processor = InputProcessor(replace(config, spec=spec), tokenizer, 64)

    def salt(length: int, given: str | None = None) -> str | None:
        made = processor.process([5] * length, SamplingParams(), f"{length} {given}", cache_salt=given)
        return made.sequences[0].cache_salt

    assert salt(8) is None and salt(8, "mine") == "mine"
    assert len({salt(9), salt(10), salt(9, "mine"), salt(10, "mine"), None, "mine"}) == 6
