"""One sequence inside the core: its tokens, how far it is computed, and where it stands. Knows no pools or queues."""

from enum import Enum, auto

from octavo.core.block_hash import extend_chain, hash_root
from octavo.core.block_table import BlockTable
from octavo.core.repetition import RepetitionDetector
from octavo.grammar.constraint import Constraint
from octavo.messages import EngineRequest, NewRow, PromptLogprobs
from octavo.outputs import FinishReason

Rank = tuple[int, int, int]


class Status(Enum):
    """Where a request stands."""

    BEHIND = auto()
    """Waiting for another sample of the same prompt to leave the queue, so that they do not fill it."""
    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    """Waiting again; its pages were taken, its tokens were not."""
    HELD = auto()
    """Finished, but its pages are kept for forks."""
    FINISHED = auto()


class Request:
    """State of one sequence. The scheduler moves `status` and `row`; the KV cache manager owns `block_table`.

    ```text
    token_ids: [ prompt .................. | generated .... ]
               [ num_computed_tokens ........... | to compute ]     the last known token is computed to sample the next
    ```

    Args:
        spec: what the client sent.
        rank: place in every queue, smaller first: (priority, start by fair share, order of arrival).
        max_total_tokens: the sequence ends with "length" when it has this many tokens.
        parent: a request whose pages this one may share.
        num_common_tokens: leading tokens that are those of `parent`.

    Attributes:
        constraint: what the answer must match, if anything.
    """

    __slots__ = (
        "_end_ids",
        "_first_end_length",
        "_hash_root",
        "_repetition",
        "block_hashes",
        "block_table",
        "charged_tokens",
        "constraint",
        "has_first_token",
        "max_total_tokens",
        "num_cached_tokens",
        "num_common_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_logprobs",
        "num_prompt_tokens",
        "parent",
        "rank",
        "request_id",
        "row",
        "scheduled_time_s",
        "spec",
        "status",
        "token_ids",
    )

    def __init__(
        self,
        spec: EngineRequest,
        *,
        rank: Rank,
        max_total_tokens: int,
        parent: "Request | None" = None,
        num_common_tokens: int = 0,
    ) -> None:
        sampling = spec.sampling
        self.spec = spec
        self.request_id = spec.request_id
        self.rank = rank
        self.charged_tokens = 0
        self.parent = parent
        self.num_common_tokens = num_common_tokens
        self.token_ids = list(spec.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.max_total_tokens = max_total_tokens
        self.status = Status.WAITING
        self.row = -1
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_prompt_logprobs = 0
        self.scheduled_time_s = 0.0
        self.constraint: Constraint | None = None
        self.has_first_token = False
        self.block_table = BlockTable()
        self.block_hashes: list[bytes] = []
        self._hash_root = hash_root(cache_salt=spec.cache_salt)
        # What matches a grammar can end in its own good time only, and then nothing can follow.
        constrained = spec.grammar is not None
        eos_token_ids = () if sampling.ignore_eos and not constrained else spec.eos_token_ids
        self._end_ids = frozenset((*eos_token_ids, *(sampling.stop_token_ids or ())))
        self._first_end_length = 0 if constrained else self.num_prompt_tokens + sampling.min_tokens + 1
        repetition = sampling.repetition_detection
        self._repetition = RepetitionDetector(repetition) if repetition and repetition.max_pattern_size else None

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and generated."""
        return len(self.token_ids)

    @property
    def _may_end_early(self) -> bool:
        return len(self.token_ids) - self.num_prompt_tokens >= self.spec.sampling.min_tokens

    @property
    def own_tokens(self) -> int:
        """Tokens so far that its tenant pays for: those of a prompt that several samples have once."""
        return self.num_tokens - (self.num_prompt_tokens if self.spec.fork_of is not None else 0)

    @property
    def num_tokens_left(self) -> int:
        """Most tokens that it may still generate."""
        return self.max_total_tokens - self.num_tokens

    @property
    def first_sample_id(self) -> str:
        """Of the request that it is a sample of."""
        return self.spec.fork_of or self.request_id

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether computed pages may replace computing: not while logprobs of prompt tokens are due."""
        wanted = self.spec.sampling.prompt_logprobs is not None
        return not wanted or self.num_prompt_logprobs >= self.num_prompt_tokens - 1

    @property
    def must_wait(self) -> bool:
        """Whether there is no use in admitting it yet; those behind it need not wait."""
        return self._waits_for_parent or not self.has_grammar

    @property
    def has_grammar(self) -> bool:
        """Whether its grammar is compiled, if it needs one."""
        return self.constraint is None or self.constraint.is_ready

    @property
    def _waits_for_parent(self) -> bool:
        """Whether a fork would share more if it came in later."""
        parent = self.parent
        if parent is None or parent.status not in (Status.BEHIND, Status.WAITING, Status.RUNNING):
            return False
        return parent.num_computed_tokens < min(self.num_common_tokens, self.num_tokens - 1)

    def as_new_row(self) -> NewRow:
        """What the worker has to know of it when it takes a row."""
        spec = self.spec
        return NewRow(
            request_id=self.request_id,
            row=self.row,
            token_ids=self.token_ids.copy(),
            num_prompt_tokens=self.num_prompt_tokens,
            num_computed_tokens=self.num_computed_tokens,
            block_ids=self.block_table.copy_groups(),
            sampling=spec.sampling,
            eos_token_ids=spec.eos_token_ids,
            bad_words_token_ids=spec.bad_words_token_ids,
            seed=spec.seed,
            sample_index=spec.sample_index,
        )

    def hash_blocks(self, num_blocks: int, block_size: int) -> list[bytes]:
        """Hashes of at least the first `num_blocks` blocks; each is computed once in a request's life."""
        if len(self.block_hashes) < num_blocks:
            extend_chain(self.block_hashes, self._hash_root, self.token_ids, num_blocks, block_size)
        return self.block_hashes

    def extend(self, sampled: list[int]) -> tuple[list[int], FinishReason | None]:
        """Add sampled tokens up to one that ends the sequence. Returns those added, and the reason if one did."""
        token_ids, num_before = self.token_ids, len(self.token_ids)
        for token_id in sampled:
            token_ids.append(token_id)
            if token_id in self._end_ids and len(token_ids) >= self._first_end_length:
                return token_ids[num_before:], "stop"
            if len(token_ids) >= self.max_total_tokens:
                return token_ids[num_before:], "length"
            if self._repetition is not None and self._repetition.push(token_id) and self._may_end_early:
                return token_ids[num_before:], "repetition"
        return sampled, None

    def stop_reason(self) -> int | None:
        """The last token, if it is a stop id of the caller and not an end-of-sequence token."""
        token_id = self.token_ids[-1]
        ends_at_eos = self.spec.grammar is not None or not self.spec.sampling.ignore_eos
        is_eos = ends_at_eos and token_id in self.spec.eos_token_ids
        return None if is_eos else token_id

    def take_prompt_logprobs(self, news: PromptLogprobs) -> PromptLogprobs | None:
        """What of `news` was not delivered before: a preempted request computes its prompt again."""
        num_known = self.num_prompt_logprobs + 1 - news.start
        assert num_known >= 0, "prompt logprobs arrive in order"
        if num_known >= len(news.positions):
            return None
        fresh = PromptLogprobs(news.start + num_known, news.positions[num_known:])
        self.num_prompt_logprobs += len(fresh.positions)
        return fresh
