"""Random lives of a scheduler: whatever comes, is forked, fails or is aborted, every request says what it says alone.

OCTAVO_TEST_EXAMPLES sets how many lives are tried (a nightly run takes thousands).
"""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.core.request import Status
from octavo.errors import ClientError
from octavo.messages import EngineRequest
from tests.core.invariants import check_scheduler
from tests.core.worlds import FULL, VOCAB_SIZE, make_request, make_world, sliding

NUM_EXAMPLES = int(os.environ.get("OCTAVO_TEST_EXAMPLES", "200"))

STEMS = [[2 + (7 * stem + 3 * i) % (VOCAB_SIZE - 2) for i in range(40)] for stem in range(3)]
"""Prompts begin like one of these, so that prefixes are shared."""

PROMPTS = st.builds(
    lambda stem, length, tail: STEMS[stem][:length] + tail,
    st.integers(0, 2),
    st.integers(1, 30),
    st.lists(st.integers(2, VOCAB_SIZE - 1), max_size=3),
)

ARRIVALS = st.fixed_dictionaries(
    {
        "prompt": PROMPTS,
        "max_tokens": st.sampled_from([None, 0, 3, 4, 5, 9]),
        "min_tokens": st.sampled_from([0, 0, 2]),
        "stop_token_ids": st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=4),
        "ignore_eos": st.booleans(),
        "prompt_logprobs": st.sampled_from([None, None, None, 1]),
        "priority": st.integers(0, 2),
        "cache_salt": st.sampled_from([None, None, "a"]),
        "hold": st.booleans(),
    }
).filter(lambda options: options["max_tokens"] != 0 or options["min_tokens"] == 0)

WORLDS = st.fixed_dictionaries(
    {
        "groups": st.sampled_from([(FULL,), (sliding(5),), (sliding(4), FULL), (FULL, sliding(1), sliding(7))]),
        "num_blocks": st.one_of(st.integers(3, 16), st.just(40)),
        "block_size": st.sampled_from([1, 2, 4]),
        "caching": st.booleans(),
        "token_budget": st.sampled_from([1, 3, 8, 50]),
        "max_num_seqs": st.integers(1, 6),
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        "enable_chunked_prefill": st.booleans(),
        "long_prefill_token_threshold": st.sampled_from([0, 2, 100]),
        "memory_bound_tokens": st.sampled_from([None, 1, 3]),
        "reserve_full_length": st.sampled_from([False, False, False, True]),
    }
)


class SchedulerLife(RuleBasedStateMachine):
    """Requests come, fork, stop, fail and are aborted between steps, or while one runs."""

    @initialize(options=WORLDS)
    def start(self, options: dict[str, object]) -> None:
        if not options["enable_chunked_prefill"]:
            options["token_budget"] = 50
        self.world = make_world(max_model_len=45, **options)
        self.failed: set[str] = set()

    def submit(self, request: EngineRequest) -> None:
        """Add, if it fits; that it does not must be true."""
        try:
            self.world.add(request)
        except ClientError as err:
            num_tokens = len(request.prompt_token_ids) + (request.sampling.max_tokens != 0)
            limit = self.world.max_total_tokens
            assert num_tokens > limit and str(len(request.prompt_token_ids)) in str(err)

    def live(self) -> list[str]:
        """Ids the core knows, held ones included."""
        return list(self.world.scheduler._requests)

    def new_id(self) -> str:
        return f"r{len(self.world.requests)}"

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=5))
    def add(self, arrivals: list[dict[str, object]]) -> None:
        for options in arrivals:
            self.submit(make_request(self.new_id(), seed=5, **options))

    @precondition(lambda self: self.live())
    @rule(data=st.data(), count=st.integers(1, 3), hold=st.booleans())
    def add_samples(self, data: st.DataObject, count: int, hold: bool) -> None:
        """What n > 1 does: more samples of a live request's prompt."""
        parent = self.world.requests[data.draw(st.sampled_from(self.live()))]
        for _ in range(count):
            request = make_request(
                self.new_id(),
                parent.prompt_token_ids,
                5,
                sample_index=len(self.world.requests),
                fork_of=parent.request_id,
                cache_salt=parent.cache_salt,
                hold=hold,
            )
            self.submit(request)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), length=st.integers(1, 50), tail=st.lists(st.integers(2, 5), min_size=1, max_size=7))
    def add_beam(self, data: st.DataObject, length: int, tail: list[int]) -> None:
        """What beam search does, and more: go on from some point of a live request with other tokens."""
        parent_id = data.draw(st.sampled_from(self.live()))
        known = [*self.world.requests[parent_id].prompt_token_ids, *self.world.tokens(parent_id)]
        request = make_request(self.new_id(), [*known[:length], *tail], 1, fork_of=parent_id, hold=True)
        self.submit(request)

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            busy = self.world.scheduler.has_unfinished()
            assert bool(self.world.step().rows) == busy, "a step does something exactly when there is something to do"

    @rule(data=st.data(), trouble=st.sampled_from(["none", "none", "abort", "fail"]))
    def step_with_trouble(self, data: st.DataObject, trouble: str) -> None:
        """While the step runs, one request is aborted; or a row fails."""
        world = self.world
        plan = world.scheduler.schedule()
        if not plan.rows:
            return
        world.plans.append(plan)
        result = world.worker.run(plan)
        if trouble == "fail":
            result.errors[data.draw(st.sampled_from(plan.rows))] = "no token left to sample"
        elif trouble == "abort":
            world.abort(data.draw(st.sampled_from(self.live())))
        world.take(world.scheduler.update_from_output(plan, result))

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(self.live()))
        self.world.abort(request_id, "unknown")
        assert self.world.outputs[request_id][-1].finish_reason is not None

    @rule(dice=st.integers(0, 9))
    def fail_all(self, dice: int) -> None:
        if dice == 0:
            self.world.take(self.world.scheduler.fail_all("the worker is gone"))
            self.world.check_idle()
            assert not self.live()

    @rule()
    def reset_prefix_cache(self) -> None:
        done = self.world.scheduler.reset_prefix_cache()
        assert done == (self.world.scheduler.stats().kv_usage == 0.0)

    @invariant()
    def nothing_leaks(self) -> None:
        if hasattr(self, "world"):
            check_scheduler(self.world.scheduler)

    @invariant()
    def delivered_tokens_are_those_of_a_lone_run(self) -> None:
        if hasattr(self, "world"):
            for request_id in self.live():
                tokens = self.world.tokens(request_id)
                assert tokens == self.world.expected(request_id)[: len(tokens)]

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        # The first in rank computes a token in every step and is never preempted, so nobody waits longer than this.
        todo = [request for request in world.scheduler._requests.values() if request.status is not Status.HELD]
        world.run(max_steps=1 + sum(request.max_total_tokens for request in todo))
        world.check_answers()
        for request_id, outputs in world.outputs.items():
            assert outputs[-1].finish_reason is not None
            self.check_prompt_logprobs(request_id)
        held = list(world.scheduler._held)
        assert all(request.status is Status.HELD for request in held)
        assert world.scheduler.abort([request.request_id for request in held]) == []
        world.check_idle()
        check_scheduler(world.scheduler)
        assert not self.live()

    def check_prompt_logprobs(self, request_id: str) -> None:
        """Each prompt position but the first once, in order, whatever was preempted."""
        request, outputs = self.world.requests[request_id], self.world.outputs[request_id]
        if request.sampling.prompt_logprobs is not None and outputs[-1].finish_reason in ("stop", "length"):
            positions = [p for o in outputs if o.prompt_logprobs for p in o.prompt_logprobs.positions]
            assert [p.token_ids[0] for p in positions] == request.prompt_token_ids[1:]


TestSchedulerLife = SchedulerLife.TestCase
TestSchedulerLife.settings = settings(
    max_examples=NUM_EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
