"""Claims about what a step holds and how requests come, wait, are preempted, fork and end."""

import pytest

from octavo.core.request import Status
from octavo.core.step import Step
from octavo.errors import ClientError, ConfigError, OverloadedError
from octavo.messages import ModelRunnerOutput
from tests.core.invariants import check_scheduler
from tests.core.worlds import EOS, FULL, VOCAB_SIZE, make_request, make_world, sliding


def finish(world, max_steps=1000):
    """Run to the end; every answer must be right and nothing left."""
    num_steps = world.run(max_steps)
    world.check_answers()
    world.check_idle()
    check_scheduler(world.scheduler)
    return num_steps


# ---------------------------------------------------------------- a step


def test_prefill_and_decode_share_one_token_budget():
    world = make_world(token_budget=8)
    world.add(make_request("a", 3), make_request("b", 10))
    assert world.step().num_tokens == [3, 5]
    # One token of a decodes; b is held to a quarter of the budget meanwhile.
    assert world.step().num_tokens == [1, 2]
    finish(world)


def test_a_seat_and_a_page_freed_in_a_step_are_used_in_the_next():
    world = make_world(max_num_seqs=1, num_blocks=2, block_size=4, caching=False)
    world.add(make_request("a", 7, max_tokens=1), make_request("b", 7, max_tokens=1))
    assert len(world.step().new_rows) == 1
    plan = world.step()
    assert plan.freed_rows == [0]
    assert [(new.request_id, new.row) for new in plan.new_rows] == [("b", 0)]
    assert finish(world) == 0


def test_a_plan_without_work_loses_no_news():
    world = make_world()
    world.add(make_request("a", 3, max_tokens=1))
    world.step()
    assert not world.scheduler.schedule().rows
    world.add(make_request("b", 3, max_tokens=1))
    plan = world.step()
    assert (plan.step, plan.freed_rows) == (1, [0])


def test_steady_decode_hands_out_nothing_until_a_page_is_full():
    world = make_world(block_size=4)
    world.add(make_request("a", 5, max_tokens=6))
    world.step()
    told = [plan.new_block_ids for plan in (world.step() for _ in range(4))]
    assert [bool(ids) for ids in told] == [False, False, False, True]


def test_tokens_wait_for_a_decoding_request_at_most_a_bounded_step():
    world = make_world(token_budget=64, max_model_len=2048, num_blocks=1024)
    world.add(make_request("short", 4, max_tokens=100))
    world.step()
    world.add(make_request("long", 900, max_tokens=1))
    sizes = []
    while not world.outputs["long"]:
        plan = world.step()
        sizes.append(plan.total_tokens)
        assert world.tokens_computed(-1, "short") == 1
    assert max(sizes) == 1 + 64 // 4 and len(sizes) == -(-900 // 16)


def test_the_long_prefill_threshold_replaces_the_quarter():
    world = make_world(token_budget=64, long_prefill_token_threshold=5)
    world.add(make_request("short", 4, max_tokens=100))
    world.step()
    world.add(make_request("long", 60))
    assert world.step().num_tokens == [1, 5]


@pytest.mark.parametrize(
    ("num_decoding", "num_prompts", "num_tokens"), [(1, 1, 1 + 4), (6, 1, 6 + 6), (1, 3, 1 + 3 * 4)]
)
def test_a_step_grows_with_the_requests_that_decode_and_the_prompts_that_wait(num_decoding, num_prompts, num_tokens):
    world = make_world(token_budget=128, memory_bound_tokens=4, max_model_len=2048, num_blocks=1024)
    world.add(*(make_request(f"short-{i}", 4, max_tokens=100) for i in range(num_decoding)))
    world.step()
    world.add(*(make_request(f"long-{i}", 900, max_tokens=1) for i in range(num_prompts)))
    for _ in range(3):
        plan = world.step()
        assert plan.total_tokens == num_tokens
        assert sum(count == 1 for count in plan.num_tokens) == num_decoding


def test_a_lone_long_prompt_has_the_whole_budget():
    world = make_world(token_budget=64)
    world.add(make_request("long", 150))
    assert [world.step().num_tokens for _ in range(3)] == [[64], [64], [22]]


def test_a_short_prompt_gets_in_beside_a_long_one_that_decodes_nothing_yet():
    world = make_world(token_budget=64)
    world.add(make_request("long", 200))
    world.step()
    world.add(make_request("short", 10))
    assert world.step().num_tokens == [48, 10]
    assert world.reason("short") is None and len(world.tokens("short")) == 1


def test_decoding_requests_come_before_prompts_that_would_use_up_the_budget():
    world = make_world(token_budget=4, long_prefill_token_threshold=100)
    world.add(make_request("long", 30), make_request("short", 2, max_tokens=9))
    while not world.tokens("short"):
        world.step()
    for _ in range(5):
        world.step()
        assert world.tokens_computed(-1, "short") == 1
    finish(world)


def test_no_more_requests_run_than_a_step_has_tokens():
    world = make_world(token_budget=2, max_num_seqs=8)
    world.add(*(make_request(f"r{i}", 3) for i in range(5)))
    while world.scheduler.has_unfinished():
        plan = world.step()
        assert world.scheduler.stats().num_running <= 2
        assert plan.total_tokens <= 2
    finish(world)


@pytest.mark.parametrize("length", [63, 64, 65, 200])
def test_prompts_around_and_beyond_the_budget_are_served_in_chunks(length):
    world = make_world(token_budget=64)
    world.add(make_request("a", length))
    assert finish(world) == -(-length // 64) + 3


# ---------------------------------------------------------------- without chunks


def test_without_chunks_a_budget_below_the_longest_sequence_stops_the_start():
    with pytest.raises(ConfigError, match=r"max_model_len is 1024.*max_num_batched_tokens is 64"):
        make_world(enable_chunked_prefill=False, token_budget=64, max_model_len=1024)


def test_without_chunks_a_prompt_waits_until_it_fits_the_step_whole():
    world = make_world(enable_chunked_prefill=False, token_budget=16, max_model_len=16, caching=False)
    world.add(make_request("a", 10, max_tokens=3), make_request("b", 7), make_request("c", 2))
    assert world.step().num_tokens == [10]
    # c is behind b and does not slip past it.
    assert world.step().num_tokens == [1, 7, 2]
    finish(world)


def test_without_chunks_a_preempted_request_is_recomputed_whole():
    world = make_world(enable_chunked_prefill=False, token_budget=16, max_model_len=16, num_blocks=4, caching=False)
    world.add(make_request("a", 8, max_tokens=8), make_request("b", 8, max_tokens=8))
    finish(world)
    assert world.scheduler.stats().num_preemptions >= 1


# ---------------------------------------------------------------- preemption


def test_second_request_is_preempted_when_first_needs_its_last_block():
    world = make_world(num_blocks=4, block_size=4)
    world.add(make_request("first", 8), make_request("second", 8))
    world.step()
    second = world.find("second")
    plan = world.step()
    assert plan.rows == [world.find("first").row] and plan.num_tokens == [1]
    assert second.status is Status.PREEMPTED and next(iter(world.scheduler.waiting)) is second
    world.add(make_request("third", 2))
    assert next(iter(world.scheduler.waiting)) is second
    finish(world)
    assert world.outputs["second"][-1].num_preemptions == 1


def test_a_request_scheduled_already_in_a_step_can_still_lose_its_place():
    world = make_world(num_blocks=7, block_size=4, token_budget=8, caching=False)
    world.add(make_request("a", 24, max_tokens=4), make_request("b", 1, max_tokens=20))
    while world.scheduler.stats().num_preemptions == 0:
        plan = world.step()
    # b decodes, so it was scheduled first; a then needed its page for the next chunk of its prompt.
    assert world.find("b").status is Status.PREEMPTED
    assert (plan.rows, plan.num_tokens, plan.freed_rows) == ([world.find("a").row], [2], [1])
    assert plan.new_block_ids[world.find("a").row][0] and not world.tokens("a")
    finish(world)


def test_with_priorities_the_worst_is_preempted_and_the_best_admitted_first():
    world = make_world(num_blocks=4, block_size=4, scheduling_policy="priority", max_num_seqs=2)
    world.add(
        make_request("bad", 8, priority=2), make_request("good", 8, priority=0), make_request("middle", 8, priority=1)
    )
    assert [new.request_id for new in world.step().new_rows] == ["good", "middle"]
    world.step()
    assert world.find("middle").status is Status.PREEMPTED
    assert [request.request_id for request in world.scheduler.waiting] == ["middle", "bad"]
    finish(world)


def test_nobody_comes_in_during_a_step_that_preempts():
    world = make_world(num_blocks=4, block_size=4, scheduling_policy="priority")
    world.add(make_request("good", 8, priority=0), make_request("bad", 8, priority=2))
    world.step()
    world.add(make_request("middle", 3, priority=1))
    plan = world.step()
    assert world.find("bad").status is Status.PREEMPTED and plan.new_rows == []
    assert [new.request_id for new in world.step().new_rows] == ["middle"]
    finish(world)


def test_priorities_do_not_matter_under_fcfs():
    world = make_world(max_num_seqs=1)
    world.add(make_request("first", 4, priority=9), make_request("second", 4, priority=0))
    assert [new.request_id for new in world.step().new_rows] == ["first"]


def test_a_big_request_is_not_overtaken_by_small_ones_that_keep_coming():
    world = make_world(num_blocks=20, block_size=4, caching=False)
    world.add(make_request("holder", 52, max_tokens=12))
    world.step()
    world.add(make_request("big", 40, max_tokens=2))
    for i in range(60):
        world.add(make_request(f"small{i}", 2, max_tokens=2))
        world.step()
        if world.reason("big"):
            break
    assert world.reason("big") == "length" and i < 20
    assert not any(world.outputs[f"small{k}"] for k in range(i - 2, i))
    finish(world)


@pytest.mark.parametrize("arrives_later", [False, True])
def test_a_prompt_in_progress_keeps_the_pages_it_will_need(arrives_later):
    world = make_world(num_blocks=12, block_size=4, token_budget=8, caching=False)
    world.add(make_request("short", 1, max_tokens=16))
    world.step()
    world.add(make_request("long", 32, max_tokens=1))
    if arrives_later:
        world.step()
    # Beside 8 pages of long and up to 4 of short there is no room for 4 more, though most are still free.
    world.add(make_request("other", 16, max_tokens=12))
    finish(world)
    assert world.scheduler.stats().num_preemptions == 0


# ---------------------------------------------------------------- what can never fit, and limits


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers():
    world = make_world(max_model_len=32)
    with pytest.raises(ClientError, match=r"32 tokens.*33.*max_model_len is 32"):
        world.add(make_request("a", 32))
    world.add(make_request("b", 32, max_tokens=0), make_request("c", 31, max_tokens=None))
    finish(world)
    assert len(world.tokens("c")) == 1 and world.reason("c") == "length"


def test_a_prompt_larger_than_a_pool_is_refused_with_both_numbers():
    world = make_world(groups=(FULL, sliding(4)), num_blocks=(5, 2), block_size=4)
    with pytest.raises(ClientError, match=r"needs 6 pages of KV group 'full', but the pool has 5"):
        world.add(make_request("a", 20))
    world.add(make_request("b", 19))
    finish(world)


def test_an_answer_larger_than_the_pool_ends_at_the_limit_and_is_never_preempted():
    world = make_world(num_blocks=5, block_size=4)
    world.add(make_request("a", 12, max_tokens=100))
    finish(world)
    assert (world.reason("a"), len(world.tokens("a"))) == ("length", 8)
    assert world.scheduler.stats().num_preemptions == 0


def test_an_empty_prompt_and_an_id_in_use_are_refused():
    world = make_world()
    with pytest.raises(ClientError, match="no tokens"):
        world.add(make_request("a", []))
    world.add(make_request("a", 3))
    with pytest.raises(ClientError, match="'a' is in use"):
        world.scheduler.add_request(make_request("a", 3))
    finish(world)


def test_a_full_queue_refuses_but_free_seats_do_not_count_as_queue():
    world = make_world(max_num_seqs=2, max_num_queued_reqs=1)
    world.add(make_request("a", 3), make_request("b", 3), make_request("c", 3))
    with pytest.raises(OverloadedError, match=r"1 requests are queued and the limit is 1"):
        world.scheduler.add_request(make_request("d", 3))
    finish(world)
    world.add(make_request("d", 3))
    finish(world)


def test_no_queue_at_all_still_serves_an_idle_engine():
    world = make_world(max_num_seqs=1, max_num_queued_reqs=0)
    world.add(make_request("a", 3))
    with pytest.raises(OverloadedError):
        world.scheduler.add_request(make_request("b", 3))
    finish(world)


def test_queued_prompt_tokens_are_limited():
    world = make_world(max_num_seqs=1, max_num_queued_tokens=10)
    world.add(make_request("a", 30))
    world.step()
    world.add(make_request("b", 6))
    with pytest.raises(OverloadedError, match=r"11 prompt tokens.*limit is 10"):
        world.scheduler.add_request(make_request("c", 5))
    world.add(make_request("d", 4))
    finish(world)


def test_a_fork_of_a_live_request_is_not_refused_for_load():
    world = make_world(max_num_seqs=1, max_num_queued_reqs=0)
    world.add(make_request("a", 3), make_request("a#1", [9, 9, 9], sample_index=1, fork_of="a"))
    finish(world)


# ---------------------------------------------------------------- how requests end


def test_an_end_of_sequence_token_stops_and_a_stop_id_is_named():
    prompt = next(p for i in range(999) if (p := make_request(f"p{i}", 5)) and first_token(p) == EOS).prompt_token_ids
    world = make_world()
    world.add(
        make_request("eos", prompt, ignore_eos=False),
        make_request("ignored", prompt),
        make_request("stop", prompt, stop_token_ids=[EOS]),
        make_request("both", prompt, ignore_eos=False, stop_token_ids=[EOS]),
        make_request("later", prompt, ignore_eos=False, min_tokens=2),
    )
    finish(world)
    ends = {name: (out[-1].finish_reason, out[-1].stop_reason) for name, out in world.outputs.items()}
    assert ends["eos"] == ends["both"] == ("stop", None) and world.tokens("eos") == [EOS]
    assert ends["ignored"] == ("length", None) and len(world.tokens("ignored")) == 4
    assert ends["stop"] == ("stop", EOS)
    assert len(world.tokens("later")) >= 3


def first_token(request):
    world = make_world()
    world.add(request)
    world.step()
    return world.tokens(request.request_id)[0]


@pytest.mark.parametrize("min_tokens, num_taken", [(0, 1), (1, 2), (2, 3), (3, 4)])
def test_a_stop_below_min_tokens_is_not_honoured_even_if_it_was_sampled(min_tokens, num_taken):
    world = make_world()
    world.add(make_request("a", 3, max_tokens=4, min_tokens=min_tokens, ignore_eos=False))
    while world.scheduler.has_unfinished():
        plan = world.scheduler.schedule()
        result = ModelRunnerOutput(step=plan.step, rows=[0], token_ids=[[EOS]])
        world.take(world.scheduler.update_from_output(plan, result))
    assert world.tokens("a") == [EOS] * num_taken


def test_tokens_after_the_end_are_cut_off_with_their_logprobs():
    world = make_world()
    world.add(make_request("a", 3, max_tokens=9, stop_token_ids=[5]))
    plan = world.scheduler.schedule()
    result = ModelRunnerOutput(step=0, rows=[0], token_ids=[[7, 5, 8]], logprobs=[["x", "y", "z"]])
    (output,) = world.scheduler.update_from_output(plan, result)
    assert (output.new_token_ids, output.logprobs, output.stop_reason) == ([7, 5], ["x", "y"], 5)


def test_max_tokens_zero_computes_the_prompt_and_samples_nothing():
    world = make_world(token_budget=8)
    world.add(make_request("a", 20, max_tokens=0, prompt_logprobs=1))
    finish(world)
    assert not any(any(plan.samples) for plan in world.plans)
    assert world.reason("a") == "length" and world.tokens("a") == []
    told = [(o.prompt_logprobs.start, len(o.prompt_logprobs.positions)) for o in world.outputs["a"]]
    assert told == [(1, 8), (9, 8), (17, 3)]


def test_prompt_logprobs_are_told_once_although_the_prompt_is_computed_twice():
    world = make_world(num_blocks=4, block_size=4)
    world.add(make_request("a", 8, max_tokens=8), make_request("b", 7, max_tokens=4, prompt_logprobs=0))
    finish(world)
    assert world.outputs["b"][-1].num_preemptions == 1
    told = [o.prompt_logprobs for o in world.outputs["b"] if o.prompt_logprobs]
    assert [p.token_ids[0] for news in told for p in news.positions] == world.requests["b"].prompt_token_ids[1:]


def test_a_row_that_fails_ends_alone_and_its_pages_come_back():
    world = make_world()
    world.add(make_request("a", 3), make_request("b", 3))
    plan = world.scheduler.schedule()
    world.plans.append(plan)
    result = world.worker.run(plan)
    result.errors[world.find("a").row] = "no token is left to sample"
    world.take(world.scheduler.update_from_output(plan, result))
    assert (world.reason("a"), world.outputs["a"][-1].error) == ("error", "no token is left to sample")
    finish(world)


def test_a_lost_step_ends_everyone_once_and_leaves_the_core_usable():
    world = make_world(max_num_seqs=1)
    world.add(make_request("a", 3, hold=True, max_tokens=1), make_request("b", 3), make_request("c", 3))
    world.step()
    world.step()
    world.take(world.scheduler.fail_all("the worker is gone"))
    assert [world.reason(name) for name in "abc"] == ["length", "error", "error"]
    world.check_idle()
    world.add(make_request("d", 3))
    finish(world)


def test_abort_works_while_queued_running_preempted_held_or_in_a_step():
    world = make_world(num_blocks=4, block_size=4, max_num_seqs=2)
    world.add(make_request("a", 8), make_request("b", 8), make_request("queued", 8))
    world.step()
    world.step()
    assert world.find("b").status is Status.PREEMPTED
    world.abort("b", "queued", "nobody")
    plan = world.scheduler.schedule()
    world.plans.append(plan)
    result = world.worker.run(plan)
    world.abort("a")
    assert world.scheduler.update_from_output(plan, result) == []
    assert [world.reason(name) for name in ("a", "b", "queued")] == ["abort"] * 3
    world.check_idle()
    world.add(make_request("held", 8, hold=True, max_tokens=1))
    world.run()
    assert world.scheduler.abort(["held"]) == []
    world.check_idle()


def test_times_and_cached_tokens_come_with_the_first_token():
    world = make_world(block_size=4)
    world.add(make_request("a", list(range(2, 12)), max_tokens=2))
    world.run()
    world.add(make_request("b", list(range(2, 12)), max_tokens=2))
    world.run()
    first, last = world.outputs["b"]
    assert (first.num_cached_tokens, first.scheduled_time_s, first.first_token_time_s) == (8, 1.0, 1.0)
    assert last.finish_reason == "length"
    stats = world.scheduler.stats()
    assert (stats.prompt_tokens, stats.prompt_tokens_cached) == (20, 8)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.generation_tokens) == (20, 8, 4)
    assert (stats.steps, stats.step_tokens) == (4, 10 + 1 + 2 + 1)


# ---------------------------------------------------------------- forks


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("groups", [(FULL,), (sliding(6), FULL)])
def test_samples_of_one_prompt_compute_it_once(groups, caching):
    world = make_world(groups=groups, caching=caching, token_budget=16)
    prompt = make_request("p", 30).prompt_token_ids
    world.add(make_request("p", prompt, max_tokens=6))
    world.add(*(make_request(f"p#{i}", prompt, max_tokens=6, sample_index=i, fork_of="p") for i in range(1, 4)))
    world.run()
    assert sum(plan.total_tokens for plan in world.plans) == 30 + 3 * 1 + 4 * 5
    copies = [copy for plan in world.plans for copy in plan.block_copies]
    assert len(copies) == 3 * len(groups)
    assert len({tuple(world.tokens(name)) for name in world.outputs}) == 4
    finish(world)


def test_a_fork_waits_for_its_parent_but_those_behind_it_do_not():
    world = make_world(token_budget=8, caching=False)
    prompt = make_request("p", 30).prompt_token_ids
    world.add(make_request("p", prompt), make_request("p#1", prompt, sample_index=1, fork_of="p"))
    world.step()
    world.add(make_request("other", 2))
    assert [new.request_id for new in world.step().new_rows] == ["other"]
    finish(world)
    assert sum(plan.total_tokens for plan in world.plans) == 30 + 1 + 2 + 3 * 3


def test_a_lone_long_prompt_is_not_slowed_by_its_own_forks():
    world = make_world(token_budget=8)
    prompt = make_request("p", 30).prompt_token_ids
    world.add(make_request("p", prompt), make_request("p#1", prompt, sample_index=1, fork_of="p"))
    assert [world.step().num_tokens for _ in range(2)] == [[8], [8]]


def test_a_fork_of_a_fork_that_came_in_a_moment_ago_copies_what_that_one_will_hold():
    world = make_world(caching=False)
    prompt = make_request("p", 6).prompt_token_ids
    world.add(make_request("p", prompt))
    world.step()
    world.add(make_request("p#1", prompt, sample_index=1, fork_of="p"))
    world.add(make_request("p#2", prompt, sample_index=2, fork_of="p#1"))
    first, second = world.step().block_copies
    assert second.src == first.dst
    finish(world)


def test_a_fork_that_goes_another_way_shares_only_what_is_common():
    world = make_world(block_size=4)
    prompt = make_request("p", 9).prompt_token_ids
    world.add(make_request("p", prompt, max_tokens=1, hold=True))
    world.run()
    world.add(make_request("c", [*prompt[:5], *([VOCAB_SIZE - 1] * 5)], fork_of="p"))
    assert world.step().num_computed_tokens == [5]
    world.abort("p")
    finish(world)


def test_a_fork_takes_the_cache_where_it_reaches_further_than_the_parent():
    world = make_world(block_size=4)
    prompt = make_request("p", 20).prompt_token_ids
    world.add(make_request("p", prompt[:6], max_tokens=1, hold=True), make_request("q", prompt))
    world.run()
    world.add(make_request("c", prompt, fork_of="p"))
    world.step()
    assert world.outputs["c"][0].num_cached_tokens == 16
    world.abort("p")
    finish(world)


def test_a_fork_that_wants_prompt_logprobs_computes_its_prompt():
    world = make_world(block_size=4)
    prompt = make_request("p", 9).prompt_token_ids
    world.add(make_request("p", prompt), make_request("p#1", prompt, fork_of="p", prompt_logprobs=1))
    finish(world)
    assert len(world.outputs["p#1"][0].prompt_logprobs.positions) == 8


@pytest.mark.parametrize("trouble", ["abort", "preempt", "salt", "unknown"])
def test_a_fork_without_a_parent_to_share_with_computes_for_itself(trouble):
    world = make_world(token_budget=8, caching=False, num_blocks=12)
    prompt = make_request("p", 30).prompt_token_ids
    salt = "other" if trouble == "salt" else None
    parent_id = "nobody" if trouble == "unknown" else "p"
    world.add(make_request("p", prompt))
    world.add(make_request("p#1", prompt, sample_index=1, fork_of=parent_id, cache_salt=salt))
    world.step()
    if trouble == "abort":
        world.abort("p")
    if trouble == "preempt":
        world.abort("p#1")
        world.scheduler._preempt(Step(token_budget=1), world.find("p"))
        world.add(make_request("q", prompt, sample_index=2, fork_of="p"))
    finish(world)
    assert not any(plan.block_copies for plan in world.plans)


def test_held_pages_are_forked_and_go_when_aborted():
    world = make_world(caching=False, groups=(sliding(5), FULL))
    prompt = make_request("p", 14).prompt_token_ids
    world.add(make_request("p", prompt, max_tokens=1, hold=True))
    world.run()
    assert world.scheduler.stats().kv_usage > 0 and not world.scheduler.has_unfinished()
    for beam in range(2):
        world.add(make_request(f"b{beam}", [*prompt, 20 + beam], max_tokens=1, fork_of="p", hold=True))
    plan = world.step()
    assert plan.num_tokens == [1, 1] and plan.num_computed_tokens == [14, 14]
    world.abort("p", "b0", "b1")
    finish(world)


def test_held_pages_go_before_anyone_is_preempted_or_kept_waiting():
    world = make_world(num_blocks=4, block_size=4, caching=False)
    world.add(make_request("old", 3, max_tokens=1, hold=True), make_request("new", 3, max_tokens=1, hold=True))
    world.run()
    world.add(make_request("a", 8, max_tokens=8))
    world.step()
    assert [request.request_id for request in world.scheduler._held] == ["old", "new"]
    world.step()
    assert [request.request_id for request in world.scheduler._held] == ["new"]
    world.add(make_request("b", 4, max_tokens=1))
    world.step()
    assert not world.scheduler._held
    finish(world)
    assert world.scheduler.stats().num_preemptions == 0


def test_a_fork_whose_held_parent_is_dropped_to_make_room_computes_for_itself():
    world = make_world(num_blocks=3, block_size=4, caching=False)
    prompt = make_request("p", 10).prompt_token_ids
    world.add(make_request("p", prompt, max_tokens=1, hold=True))
    world.run()
    world.add(make_request("c", prompt, max_tokens=2, fork_of="p", sample_index=1))
    finish(world)
    assert not world.plans[1].block_copies


# ---------------------------------------------------------------- gauges


def test_waste_is_the_share_of_slots_without_a_token():
    world = make_world(num_blocks=8, block_size=4, caching=False)
    world.add(make_request("a", 5, max_tokens=8), make_request("b", 8, max_tokens=8))
    world.step()
    stats = world.scheduler.stats()
    assert stats.kv_usage == 4 / 8 and stats.kv_waste == 3 / 16
    assert (stats.kv_peak_blocks, stats.kv_peak_waste, stats.peak_running) == (4, 3 / 16, 2)
    world.step()
    stats = world.scheduler.stats()
    assert stats.kv_waste == (2 + 3) / 20 and (stats.kv_peak_blocks, stats.kv_peak_waste) == (5, 5 / 20)
    finish(world)


def test_shared_pages_count_once_and_held_ones_count():
    world = make_world(num_blocks=16, block_size=4, caching=False)
    prompt = make_request("p", 9).prompt_token_ids
    world.add(make_request("p", prompt, max_tokens=1, hold=True))
    world.run()
    assert world.scheduler.stats().kv_waste == 3 / 12
    world.add(make_request("p#1", prompt, sample_index=1, fork_of="p"))
    world.step()
    stats = world.scheduler.stats()
    assert (stats.kv_usage, stats.kv_waste, stats.peak_running) == (4 / 16, 6 / 16, 2)


def test_reserving_full_length_carries_fewer_requests_and_shows_as_waste():
    reserved, paged = (
        make_world(num_blocks=32, block_size=4, max_model_len=32, caching=False, reserve_full_length=reserve)
        for reserve in (True, False)
    )
    for world in (reserved, paged):
        world.add(*(make_request(f"r{i}", 8, max_tokens=4) for i in range(8)))
        finish(world)
    assert reserved.scheduler.stats().peak_running == 32 * 4 // 32
    assert paged.scheduler.stats().peak_running == 8
    assert reserved.scheduler.stats().kv_peak_waste == 1 - 8 / 32
    assert reserved.scheduler.stats().num_preemptions == 0


def test_the_prefix_cache_is_reset_only_when_idle():
    world = make_world()
    world.add(make_request("a", 20))
    world.step()
    assert not world.scheduler.reset_prefix_cache()
    world.run()
    assert world.scheduler.reset_prefix_cache()
    world.add(make_request("b", world.requests["a"].prompt_token_ids, max_tokens=1))
    world.run()
    assert world.outputs["b"][0].num_cached_tokens == 0
