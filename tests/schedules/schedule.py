"""A schedule: which requests come when, and the engine they come to. Plain values whose `repr` makes them again, and
the hypothesis strategy that draws them. Knows no engine.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from octavo.grammar.build import build_grammar
from octavo.messages import EngineRequest
from octavo.sampling_params import SamplingParams, StructuredOutputsParams

VOCAB_SIZE = 101
"""No multiple of any vector or panel, so the last part of a row of logits is a ragged one."""

MAX_LENGTH = 2400
"""Most tokens of prompt and answer."""


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        num_shared: leading tokens, the same in all prompts of a schedule.
        num_own: tokens after these, by `seed`.
        arrives: the step before which it is submitted.
        leaves: so many steps later it is aborted; None lets it end.
        scored: the prompt's logprobs are asked for.
        priority: as `--scheduling-policy priority` reads it.
        pattern: a regular expression that the answer matches, as far as it gets.
        options: of `SamplingParams`.
    """

    num_shared: int = 0
    num_own: int = 1
    max_tokens: int = 1
    n: int = 1
    seed: int = 0
    arrives: int = 0
    leaves: int | None = None
    scored: bool = False
    priority: int = 0
    pattern: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Prompt and longest answer."""
        return self.num_shared + self.num_own + self.max_tokens

    @property
    def grammar(self) -> str | None:
        """Of the pattern."""
        return None if self.pattern is None else build_grammar(StructuredOutputsParams(regex=self.pattern))

    def requests(self, name: str) -> list[EngineRequest]:
        """What the input processor makes of it: one sequence per sample, all but the first forks of it."""
        shared, own = random.Random(-1), random.Random(self.seed)
        prompt = shared.choices(range(3, VOCAB_SIZE), k=self.num_shared)
        prompt += own.choices(range(3, VOCAB_SIZE), k=self.num_own)
        return [
            EngineRequest(
                request_id=f"{name}#{index}",
                prompt_token_ids=prompt,
                sampling=SamplingParams(
                    **self.options,
                    max_tokens=self.max_tokens,
                    logprobs=2,
                    prompt_logprobs=2 if self.scored and index == 0 else None,
                ),
                grammar=self.grammar,
                eos_token_ids=[2],
                priority=self.priority,
                seed=self.seed,
                sample_index=index,
                fork_of=f"{name}#0" if index else None,
            )
            for index in range(self.n)
        ]


@dataclass(frozen=True)
class Schedule:
    """Attributes:
    spare_blocks: pages beyond what the largest request needs; few of them force preemptions and evictions.
    warm: every prompt has been answered with one token before.
    resets: steps before which the prefix cache is reset.
    """

    asks: tuple[Ask, ...]
    max_num_seqs: int = 8
    token_budget: int = 1024
    prefill_threshold: int = 0
    block_size: int = 16
    spare_blocks: int = 64
    policy: str = "fcfs"
    caching: bool = True
    warm: bool = False
    resets: frozenset[int] = frozenset()
    threads: int = 1

    @property
    def num_blocks(self) -> int:
        """Pages of each KV group."""
        return -(-max(ask.num_tokens for ask in self.asks) // self.block_size) + 1 + self.spare_blocks


CROWD = Schedule(
    tuple(
        Ask(num_own=290 - 3 * i, max_tokens=4, seed=i, scored=i == 0, options={"temperature": 0.8}) for i in range(3)
    ),
    threads=2,
    prefill_threshold=1024,
)
"""Long prompts that all arrive at once and are computed in one step of more than 800 tokens."""

COMPANY = Schedule(
    tuple(Ask(num_shared=258, num_own=3 + i, max_tokens=5, seed=i, options={"temperature": 0.8}) for i in range(4)),
    token_budget=700,
    warm=True,
    threads=2,
)
"""Requests that decode together, with pages in common that hold more than one split of keys."""


sampling_options = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.0, 0.6, 1.0, 1.7])},
    optional={
        "top_p": st.sampled_from([0.3, 0.8, 0.95]),
        "top_k": st.sampled_from([2, 5, 40]),
        "min_p": st.sampled_from([0.02, 0.2]),
        "repetition_penalty": st.sampled_from([0.8, 1.3]),
        "frequency_penalty": st.sampled_from([-0.5, 0.7]),
        "presence_penalty": st.sampled_from([-0.4, 1.1]),
        "min_tokens": st.just(1),
    },
)
lengths = st.one_of(st.integers(1, 20), st.integers(1, 80), st.integers(1, 288))

long_lengths = st.integers(289, 2048)
"""For at most one request of a schedule: a neighbour far longer than the rest."""

asks = st.builds(
    Ask,
    num_shared=st.sampled_from([0, 0, 1, 16, 17, 32, 96, 96, 528]),  # from 256 on, attention reads shared pages once
    num_own=lengths,
    max_tokens=st.one_of(st.integers(1, 12), st.integers(8, 40)),
    n=st.sampled_from([1, 1, 1, 2, 3]),
    seed=st.integers(0, 2**40),
    arrives=st.one_of(st.just(0), st.integers(0, 30)),
    leaves=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 12)),
    scored=st.booleans(),
    priority=st.integers(-1, 1),
    pattern=st.sampled_from([None, None, None, "[a-f]+(x|yz){2,9}[ -~]*", "([0-9]{1,3},)+"]),
    options=sampling_options,
)


def with_neighbour(some: tuple[Ask, ...], length: int | None) -> tuple[Ask, ...]:
    """The same asks, the first of them with a prompt of its own of `length` tokens."""
    return some if length is None else (replace(some[0], num_own=length), *some[1:])


schedules = st.builds(
    Schedule,
    asks=st.builds(
        with_neighbour,
        st.lists(asks, min_size=1, max_size=6).map(tuple),
        st.one_of(st.none(), st.none(), st.none(), long_lengths),
    ),
    max_num_seqs=st.sampled_from([1, 2, 3, 4, 5, 6, 8]),
    token_budget=st.one_of(st.integers(8, 64), st.integers(8, 400), st.just(1024)),
    prefill_threshold=st.sampled_from([0, 0, 1, 7, 33]),
    block_size=st.sampled_from([1, 2, 4, 8, 16, 32]),
    spare_blocks=st.sampled_from([0, 0, 0, 1, 2, 5, 12, 64]),
    policy=st.sampled_from(["fcfs", "fcfs", "priority"]),
    caching=st.sampled_from([True, True, False]),
    warm=st.booleans(),
    resets=st.frozensets(st.integers(0, 30), max_size=2),
    threads=st.integers(1, 4),
)
