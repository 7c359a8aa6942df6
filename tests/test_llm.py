import gc
import os
import random
import signal
import threading
import time
import weakref

import pytest
import torch

from octavo.errors import ClientError, ConfigError, EngineDeadError
from octavo.llm import LLM
from octavo.sampling_params import BeamSearchParams, SamplingParams
from tests.engine.worlds import write_tokenizer
from tests.tiny import reference_logits, reference_model, tiny_checkpoint

VOCAB_SIZE = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Llama of 96 characters in a Transformers folder."""
    return write_tokenizer(tiny_checkpoint("llama", tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def make_llm(folder):
    """Engines in this process, float32; closed at the end of the module."""
    made = []

    def make(**options):
        options = {"num_gpu_blocks_override": 256, "max_num_seqs": 8, **options}
        made.append(LLM(str(folder), device="cpu", dtype="float32", threads=1, **options))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


@pytest.fixture(scope="module")
def llm(make_llm):
    return make_llm()


@pytest.fixture(scope="module")
def reference(folder):
    return reference_model(folder)


def prompt_of(length, seed=0):
    choose = random.Random(f"{length}/{seed}")
    return [choose.randrange(3, VOCAB_SIZE) for _ in range(length)]


def greedy(max_tokens=8, **params):
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **params)


def run(llm, prompts, params):
    return llm.generate(prompts, params, use_tqdm=False)


def token_ids(output):
    return output.outputs[0].token_ids


# ---------------------------------------------------------------- results


def test_greedy_tokens_and_logprobs_are_those_of_transformers(llm, folder):
    prompt = prompt_of(40)
    (output,) = run(llm, prompt, greedy(12, logprobs=0, prompt_logprobs=0))
    sequence = prompt + token_ids(output)
    expected = reference_logits(folder, sequence).log_softmax(-1)
    assert token_ids(output) == expected[len(prompt) - 1 : -1].argmax(-1).tolist()
    got = [
        entry[token_id].logprob for entry, token_id in zip(output.outputs[0].logprobs, token_ids(output), strict=True)
    ]
    prompt_got = [
        entry[token_id].logprob for entry, token_id in zip(output.prompt_logprobs[1:], prompt[1:], strict=True)
    ]
    actual = expected[:-1].gather(1, torch.tensor(sequence[1:]).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(torch.tensor(prompt_got + got), actual, atol=1e-4, rtol=0)


def test_outputs_come_in_the_order_of_the_prompts(llm):
    prompts = [prompt_of(length) for length in (50, 3, 20, 1, 33, 8, 2, 41, 5, 17)]
    params = [greedy(max_tokens) for max_tokens in (2, 9, 1, 30, 4, 4, 12, 3, 8, 5)]
    outputs = run(llm, prompts, params)
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert [len(token_ids(output)) for output in outputs] == [p.max_tokens for p in params]
    assert [token_ids(output) for output in outputs] == [
        token_ids(run(llm, p, q)[0]) for p, q in zip(prompts, params, strict=True)
    ]


def test_text_prompts_are_tokenized_and_answers_decoded(llm):
    (output,) = run(llm, "Hello there", greedy())
    assert output.prompt == "Hello there" and output.prompt_token_ids == llm.get_tokenizer().encode("Hello there")
    assert output.outputs[0].text == llm.get_tokenizer().decode(token_ids(output))


def test_a_bad_prompt_in_a_list_stops_everything_before_it_runs(llm):
    steps = llm.stats().steps
    for bad in ("", [96], "x" * 512, {"prompt_embeds": 1}):
        with pytest.raises(ClientError):
            run(llm, ["good", bad, "good"], greedy())
    with pytest.raises(ClientError, match="2 sampling_params were given for 3 prompts"):
        run(llm, ["a", "b", "c"], [greedy(), greedy()])
    assert llm.stats().steps == steps and llm.stats().num_waiting == 0


@pytest.mark.parametrize(
    "prompts",
    [None, 5, {1, 2}, b"ab", (c for c in "ab"), torch.tensor([5, 6]), [b"ab"], [None], ["a", 5],
     {"prompt": "a", "mm_processor_kwargs": {}}, {"prompt": "a", "cache_salt": 5}],
)  # fmt: skip
def test_what_is_no_prompt_is_refused_by_name(llm, prompts):
    with pytest.raises(ClientError) as refused:
        run(llm, prompts, greedy())
    assert refused.value.param in ("prompt", "cache_salt")


@pytest.mark.parametrize("params", [{"temperature": 0}, "x", BeamSearchParams(beam_width=1, max_tokens=1), [None]])
def test_what_is_no_sampling_params_is_refused(llm, params):
    with pytest.raises(ClientError, match="must be SamplingParams"):
        run(llm, "abc", params)


def test_a_priority_that_would_be_ignored_is_refused(llm):
    with pytest.raises(ClientError, match="order of arrival"):
        llm.generate("abc", greedy(), priority=5, use_tqdm=False)


@pytest.mark.parametrize("priority", ["high", None, 2**63, -(2**64)])
def test_a_priority_is_a_whole_number_of_64_bits(llm, priority):
    with pytest.raises(ClientError, match="priority"):
        llm.generate("abc", greedy(), priority=[priority], use_tqdm=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [("beam_width", 0), ("beam_width", 2.5), ("max_tokens", 0), ("length_penalty", 1e9), ("length_penalty", -1e9),
     ("length_penalty", float("nan"))],
)  # fmt: skip
def test_a_beam_search_that_cannot_be_is_refused_by_name(field, value):
    with pytest.raises(ClientError) as refused:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 2, field: value})
    assert refused.value.param == field


@pytest.mark.parametrize("field", ["stop", "stop_token_ids", "bad_words", "allowed_token_ids", "logit_bias"])
def test_a_number_where_a_list_belongs_is_refused_by_name(field):
    with pytest.raises(ClientError) as refused:
        SamplingParams(**{field: 5})
    assert refused.value.param == field


def test_a_message_outside_a_list_is_refused(llm):
    with pytest.raises(ClientError, match="into a list"):
        llm.chat({"role": "user", "content": "a"})


def test_stop_strings_end_the_text_and_free_the_pages(llm):
    text = run(llm, "Hello", greedy(40))[0].outputs[0].text
    stop = text[10:13]
    (output,) = run(llm, "Hello", greedy(40, stop=[stop]))
    sample = output.outputs[0]
    assert (sample.finish_reason, sample.stop_reason) == ("stop", stop) and sample.text == text[: text.index(stop)]
    assert llm.stats().kv_usage == 0.0


# ---------------------------------------------------------------- seeds (SMP-01, SMP-03)


def test_smp_01_a_seeded_request_answers_the_same_alone_and_in_any_company(make_llm, llm):
    seeded = SamplingParams(seed=42, temperature=0.8, ignore_eos=True, max_tokens=16)
    free = SamplingParams(temperature=0.8, ignore_eos=True, max_tokens=16)
    prompt = prompt_of(20)
    rounds = [run(llm, [prompt, prompt_of(12, i)], [seeded, free]) for i in range(5)]
    answers = {tuple(token_ids(a)) for a, _ in rounds}
    alone = tuple(token_ids(run(llm, prompt, seeded)[0]))
    crowd = [prompt_of(10 + i) for i in range(6)]
    seventh = run(llm, [*crowd, prompt, prompt_of(9)], [*[free] * 6, seeded, free])[6]
    chunked = make_llm(max_num_batched_tokens=16)
    beside = run(chunked, [prompt_of(100), prompt, prompt_of(90)], [free, seeded, free])[1]
    assert answers == {alone} == {tuple(token_ids(seventh))} == {tuple(token_ids(beside))}
    beside_seeded = [tuple(token_ids(run(llm, [prompt, prompt_of(12)], [seeded, free])[1])) for _ in range(5)]
    assert len(set(beside_seeded)) > 1


def test_an_unseeded_answer_can_be_replayed_with_the_seed_it_reports(llm):
    params = SamplingParams(temperature=1.0, max_tokens=16, ignore_eos=True)
    sample = run(llm, "abc", params)[0].outputs[0]
    again = run(llm, "abc", SamplingParams(temperature=1.0, max_tokens=16, ignore_eos=True, seed=sample.seed))
    assert again[0].outputs[0].token_ids == sample.token_ids


@pytest.mark.parametrize("max_num_seqs", [2, 8])
def test_samples_differ_from_each_other_and_repeat_with_the_seed(make_llm, max_num_seqs):
    llm = make_llm(max_num_seqs=max_num_seqs)
    hot = SamplingParams(n=4, temperature=1.0, seed=1, max_tokens=16, ignore_eos=True)
    sets = [[tuple(sample.token_ids) for sample in run(llm, prompt_of(20), hot)[0].outputs] for _ in range(5)]
    assert all(each == sets[0] for each in sets) and len(set(sets[0])) > 1
    (cold,) = run(llm, prompt_of(20), SamplingParams(n=4, temperature=0.0, max_tokens=16, ignore_eos=True))
    assert [sample.index for sample in cold.outputs] == [0, 1, 2, 3]
    assert len({tuple(sample.token_ids) for sample in cold.outputs}) == 1


# ---------------------------------------------------------------- prompt logprobs (LPB-01)


def prompt_logprobs(llm, prompt):
    (output,) = run(llm, prompt, SamplingParams(prompt_logprobs=1, max_tokens=1, temperature=0.0))
    first, *rest = output.prompt_logprobs
    assert first is None and len(rest) == len(prompt) - 1
    values = [entry[token_id].logprob for entry, token_id in zip(rest, prompt[1:], strict=True)]
    assert any(value != 0.0 for value in values) or not values
    return values


def test_lpb_01_prompt_logprobs_do_not_depend_on_cache_order_or_chunks(make_llm):
    lengths = (15, 16, 17, 31, 32, 33, 64)
    shared = prompt_of(48)
    a, b = shared + prompt_of(9, 1), shared + prompt_of(9, 2)
    one, other, chunked = make_llm(), make_llm(), make_llm(max_num_batched_tokens=16)
    for prompt in [prompt_of(length) for length in lengths]:
        first = pytest.approx(prompt_logprobs(one, prompt), abs=1e-4)
        assert prompt_logprobs(one, prompt) == first and prompt_logprobs(chunked, prompt) == first
    in_order = [prompt_logprobs(one, prompt) for prompt in (a, b)]
    swapped = [prompt_logprobs(other, prompt) for prompt in (b, a)]
    assert in_order == [pytest.approx(values, abs=1e-4) for values in swapped[::-1]]


# ---------------------------------------------------------------- prefix cache (PFX-01)


def test_cached_pages_change_nothing_but_the_work(make_llm):
    with_cache, without = make_llm(), make_llm(enable_prefix_caching=False)
    params = greedy(4, logprobs=1)

    def answer(llm, prompt):
        (output,) = run(llm, prompt, params)
        entries = zip(output.outputs[0].logprobs, token_ids(output), strict=True)
        return token_ids(output), [entry[token_id].logprob for entry, token_id in entries], output.num_cached_tokens

    def check(prompt):
        tokens, logprobs, _ = answer(without, prompt)
        got_tokens, got_logprobs, num_cached = answer(with_cache, prompt)
        assert got_tokens == tokens and got_logprobs == pytest.approx(logprobs, abs=1e-4)
        return tokens, num_cached

    for length in (15, 16, 17, 31, 32, 33, 48):
        prompt, last_page = prompt_of(length), (length - 1) // 16 * 16
        (tokens, first), (_, second), (_, third) = (check(prompt) for _ in range(3))
        assert (first, second, third) == (0, last_page, last_page)
        check(prompt + tokens + prompt_of(5))
        middle = (last_page + length) // 2
        _, num_cached = check(prompt[:middle] + [3 + (token_id - 2) % 93 for token_id in prompt[middle:]])
        assert num_cached <= last_page


def test_the_cache_can_be_reset_and_salted(llm):
    prompt = prompt_of(40, 7)
    cached = [run(llm, prompt, greedy(1))[0].num_cached_tokens for _ in range(2)]
    salted = run(llm, {"prompt_token_ids": prompt, "cache_salt": "mine"}, greedy(1))[0].num_cached_tokens
    assert llm.reset_prefix_cache()
    assert [*cached, salted, run(llm, prompt, greedy(1))[0].num_cached_tokens] == [0, 32, 0, 0]


# ---------------------------------------------------------------- limits (SCH-01, SCH-04)


def test_a_pool_smaller_than_the_context_refuses_long_prompts_and_serves_the_rest(make_llm, caplog):
    llm = make_llm(num_gpu_blocks_override=8)
    assert "the KV pool holds 128 tokens but max_model_len is 512" in caplog.text
    with pytest.raises(ClientError, match=r"prompt has 250 tokens .* may have 128"):
        run(llm, prompt_of(250), greedy())
    assert all(len(token_ids(output)) == 4 for output in run(llm, [prompt_of(20, i) for i in range(5)], greedy(4)))
    (output,) = run(llm, prompt_of(110), greedy(60))
    assert output.outputs[0].finish_reason == "length" and len(token_ids(output)) == 18


def test_auto_length_is_what_the_pool_holds(make_llm):
    llm = make_llm(num_gpu_blocks_override=8, max_model_len="auto")
    assert llm.config.max_model_len == llm.facts.max_request_tokens == 128


def test_zero_and_one_are_token_counts_like_others(llm):
    outputs = run(llm, ["ab", "ab", [1]], [greedy(0, prompt_logprobs=0), greedy(1), greedy(2)])
    assert [len(token_ids(output)) for output in outputs] == [0, 1, 2]
    assert [output.outputs[0].finish_reason for output in outputs] == ["length"] * 3
    assert outputs[0].prompt_logprobs[1] is not None


def test_an_answer_without_limit_ends_at_the_context_length(make_llm):
    llm = make_llm(max_model_len=64)
    (output,) = run(llm, prompt_of(60), greedy(None))
    assert len(token_ids(output)) == 4 and output.outputs[0].finish_reason == "length"


# ---------------------------------------------------------------- chat, streams, beams


def test_chat_renders_the_template_and_answers_one_or_many(llm):
    conversation = [{"role": "user", "content": "Hello"}]
    (one,) = llm.chat(conversation, greedy(4), use_tqdm=False)
    assert one.prompt == "[user] Hello\n[assistant] "
    two = llm.chat([conversation, [*conversation, {"role": "assistant", "content": "Hi"}]], greedy(4), use_tqdm=False)
    assert two[0].outputs[0].text == one.outputs[0].text and two[1].prompt.startswith("[user] Hello\n[assistant] Hi\n")
    (more,) = llm.chat(
        [*conversation, {"role": "assistant", "content": "Hi"}],
        greedy(4),
        use_tqdm=False,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert more.prompt == "[user] Hello\n[assistant] Hi"


def test_a_stream_joins_to_the_text_and_can_be_left(llm):
    expected = run(llm, "Hello", greedy(30))[0].outputs[0].text
    pieces = list(llm.stream("Hello", greedy(30)))
    assert "".join(pieces) == expected and len(pieces) > 5
    stream = llm.stream_chat([{"role": "user", "content": "Hello"}], greedy(200))
    next(stream)
    stream.close()
    assert llm.stats().num_running == 0


@pytest.mark.parametrize("penalty", [1.0, 0.0])
def test_beams_are_those_of_a_search_by_hand(llm, reference, penalty):
    prompt, width, steps, eos = prompt_of(18), 3, 5, 2

    def next_logprobs(tokens):
        with torch.no_grad():
            return reference(torch.tensor([tokens]), use_cache=False).logits[0, -1].log_softmax(-1)

    def score(beam):
        tokens, logprob = beam
        return logprob / (len(tokens) - (tokens[-1] == eos)) ** penalty

    beams, done = [(prompt, 0.0)], []
    for _ in range(steps):
        grown = []
        for tokens, logprob in beams:
            values, ids = next_logprobs(tokens).topk(2 * width)
            for value, token_id in zip(values.tolist(), ids.tolist(), strict=True):
                (done if token_id == eos else grown).append(([*tokens, token_id], logprob + value))
        beams = sorted(grown, key=score, reverse=True)[:width]
    expected = sorted(done + beams, key=score, reverse=True)[:width]
    params = BeamSearchParams(
        beam_width=width, max_tokens=steps, length_penalty=penalty, include_stop_str_in_output=True
    )
    for output in llm.beam_search([prompt, prompt], params):
        assert [sequence.tokens for sequence in output.sequences] == [tokens for tokens, _ in expected]
        assert [s.cum_logprob for s in output.sequences] == pytest.approx([p for _, p in expected], abs=1e-3)
        assert output.sequences[0].text == llm.get_tokenizer().decode(output.sequences[0].tokens)
    assert llm.stats().kv_usage == 0.0


def test_beams_are_those_of_transformers_where_both_mean_the_same(llm, reference):
    """Without an end of the text all beams are equally long, so how a score counts the length makes no difference."""
    prompt, width = prompt_of(24, 1), 4
    made = reference.generate(
        torch.tensor([prompt]),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=7,
        min_new_tokens=7,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        length_penalty=1.0,
    )
    params = BeamSearchParams(beam_width=width, max_tokens=7, ignore_eos=True)
    (output,) = llm.beam_search(prompt, params)
    assert [sequence.tokens for sequence in output.sequences] == made.sequences.tolist()
    scores = [sequence.cum_logprob / 7 for sequence in output.sequences]
    assert scores == pytest.approx(made.sequences_scores.tolist(), abs=1e-4)


def test_beams_compute_only_their_own_tokens(llm):
    llm.reset_prefix_cache()
    before = llm.stats().step_tokens
    llm.beam_search(prompt_of(200, 3), BeamSearchParams(beam_width=4, max_tokens=6))
    assert llm.stats().step_tokens - before == 200 + 5 * 4


# ---------------------------------------------------------------- life


def test_ctrl_c_ends_the_call_and_the_engine_stays_usable(llm):
    expected = token_ids(run(llm, "Hello", greedy())[0])
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        while time.monotonic() - start_s < 30:
            run(llm, [prompt_of(30, i) for i in range(20)], greedy(400))
    timer.join()
    stats = llm.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0.0)
    assert token_ids(run(llm, "Hello", greedy())[0]) == expected


@pytest.mark.parametrize(
    ("failing", "lost"), [((3,), 0), ((3, 5), 1), ((3, 4, 5), 2)], ids=["a step", "a row", "both rows"]
)
def test_a_forward_pass_that_fails_costs_only_the_requests_that_fail_alone_too(
    make_llm, llm, monkeypatch, failing, lost
):
    unlucky = make_llm(max_num_seqs=2)
    prompts = [prompt_of(30 + i) for i in range(5)]
    expected = [token_ids(run(llm, prompt, greedy())[0]) for prompt in prompts]
    runner = unlucky._client._core.executor._worker._runner
    forward, calls = runner._forward, iter(range(1000))

    def fail_at_times(batch):
        if next(calls) in failing:
            raise RuntimeError("out of memory")
        return forward(batch)

    monkeypatch.setattr(runner, "_forward", fail_at_times)
    outputs = run(unlucky, prompts, greedy())
    failed = [output for output in outputs if output.outputs[0].finish_reason == "error"]
    assert len(failed) == lost and all("out of memory" in output.outputs[0].error for output in failed)
    sound = [i for i, output in enumerate(outputs) if output.outputs[0].finish_reason == "length"]
    assert len(sound) == 5 - lost
    assert [token_ids(outputs[i]) for i in sound] == [expected[i] for i in sound]
    assert [token_ids(output) for output in run(unlucky, prompts, greedy())] == expected


def test_threads_share_an_engine(llm):
    prompts = [prompt_of(10 + i) for i in range(6)]
    expected = [token_ids(run(llm, prompt, greedy(12))[0]) for prompt in prompts]
    answers = [None] * 6

    def ask(i):
        answers[i] = token_ids(run(llm, prompts[i], greedy(12))[0])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == expected


def test_closing_gives_the_model_back_and_ends_the_llm(make_llm):
    with make_llm() as llm:
        run(llm, "a", greedy(2))
        model = weakref.ref(llm._client._core.executor._worker._model)
    llm.close()
    gc.collect()
    assert model() is None
    with pytest.raises(EngineDeadError, match="closed"):
        run(llm, "a", greedy())


def test_a_start_that_fails_leaves_nothing_to_clean_up(folder):
    with pytest.raises(ConfigError, match="did you mean max_num_seqs"):
        LLM(str(folder), max_num_seq=3)
    with pytest.raises(ConfigError, match="does not hold one page"):
        LLM(str(folder), device="cpu", dtype="float32", kv_cache_memory_bytes=10)


def test_the_progress_bar_says_how_fast_it_is(make_llm, capfd):
    make_llm().generate(["a", "b"], greedy(4))
    assert "tokens/s" in capfd.readouterr().err


def test_two_hundred_random_requests_end_once_each_in_a_tiny_pool(make_llm):
    llm = make_llm(num_gpu_blocks_override=20, block_size=8, max_num_batched_tokens=24)
    choose = random.Random(5)
    prompts = [prompt_of(choose.randint(1, 60), i) for i in range(200)]
    params = [
        SamplingParams(
            n=choose.choice([1, 1, 1, 3]),
            temperature=choose.choice([0.0, 1.0]),
            max_tokens=choose.randint(0, 20),
            logprobs=choose.choice([None, 0, 3]),
            prompt_logprobs=choose.choice([None, None, 1]),
            repetition_penalty=choose.choice([1.0, 1.3]),
            stop=choose.choice([None, ["e"]]),
        )
        for _ in range(200)
    ]
    outputs = run(llm, prompts, params)
    for prompt, each, output in zip(prompts, params, outputs, strict=True):
        assert output.finished and output.prompt_token_ids == prompt and len(output.outputs) == each.n
        assert all(sample.finish_reason in ("stop", "length") for sample in output.outputs)
    stats = llm.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0.0) and stats.num_preemptions > 0
