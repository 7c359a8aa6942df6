"""What travels between the floors: client -> core (EngineRequest), core -> worker (SchedulerOutput),
worker -> core (ModelRunnerOutput), core -> client (EngineOutput). Plain data, msgpack-able, no behaviour.

Index spaces: a *row* is a seat in the worker's batch state, owned by one running sequence, 0 <= row < max_num_seqs.
A *block id* is a page of one KV group. A *position* is the index of a token in its sequence, prompt included.
"""

from collections.abc import Callable

import msgspec

from octavo.outputs import FinishReason
from octavo.sampling_params import SamplingParams

Progress = Callable[[str, int, int], None]
"""Called while files are fetched and a model is loaded, as `progress(stage, done, total)`: "fetching <file>" counts
bytes, LOADING_WEIGHTS tensors. A total of 0 is unknown; done == total ends a stage."""

LOADING_WEIGHTS = "loading weights"
"""The stage that begins once the model's files are known to be whole: every tensor is there, with the right shape."""

BACKGROUND_PRIORITY = 2**62
"""Of requests that nobody waits for (batches): after all others under every scheduling policy, and the first to be
preempted."""

# ---------------------------------------------------------------- client -> core


class EngineRequest(msgspec.Struct, kw_only=True):
    """One sequence to generate. A request with n > 1 becomes n of these, each but the first with `fork_of`.

    Attributes:
        request_id: unique among live requests; `<id>#<sample>` for samples of one request.
        prompt_token_ids: never empty; prompt + max_tokens fits max_model_len.
        sampling: validated; `max_tokens`, `stop_token_ids` filled in, `n` and `structured_outputs` left out.
        grammar: what the answer must match, as `grammar.build` makes it.
        eos_token_ids: end the text with reason "stop" unless `sampling.ignore_eos`; suppressed below min_tokens.
        bad_words_token_ids: token sequences that must not be completed.
        seed, sample_index: key of the counter-based generator (design rule I5); the same pair gives the same tokens.
        priority: lower runs first under `--scheduling-policy priority`.
        tenant: whom the request is for; tenants share the engine in equal parts while they wait for it.
        cache_salt: extra key of the prefix cache; requests with other salts never share blocks.
        fork_of: id of a live request with the same leading tokens, whose KV blocks are shared copy-on-write if it
            still has them; otherwise ignored.
        hold: keep the KV blocks after the end (until `abort`, or until memory is short), so it can be forked.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    grammar: str | None = None
    eos_token_ids: list[int] = []
    bad_words_token_ids: list[list[int]] = []
    seed: int = 0
    sample_index: int = 0
    arrival_time_s: float = 0.0
    priority: int = 0
    tenant: str = ""
    cache_salt: str | None = None
    fork_of: str | None = None
    hold: bool = False


# ---------------------------------------------------------------- core -> worker


class NewRow(msgspec.Struct, kw_only=True):
    """A sequence that takes a row in this step: new, or back after a preemption.

    Attributes:
        token_ids: everything known, prompt + already generated.
        num_computed_tokens: leading tokens whose KV is in the blocks already (prefix cache, fork).
        block_ids: per KV group, the whole block table so far (-1 where a sliding window has let a block go).
    """

    request_id: str
    row: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: list[list[int]]
    sampling: SamplingParams
    eos_token_ids: list[int]
    bad_words_token_ids: list[list[int]]
    seed: int
    sample_index: int


class BlockCopy(msgspec.Struct, array_like=True):
    """Copy page `src` to page `dst` of KV group `group` before the step runs (copy-on-write).

    Copies are made in order: the target of one may be the source of a later one.
    """

    group: int
    src: int
    dst: int


class SchedulerOutput(msgspec.Struct, kw_only=True):
    """One step's work. `rows`, `num_tokens`, `num_computed_tokens` and `samples` are parallel lists.

    The worker handles, in this order: freed_rows, new_rows, new blocks (zeroed), block_copies, forward, sample.

    Attributes:
        step: counts up from 0.
        freed_rows: rows whose sequence ended or was preempted since the last step.
        rows: scheduled rows, in the order of their tokens in the batch.
        num_tokens: tokens each row computes in this step, >= 1.
        num_computed_tokens: tokens of each row computed before this step.
        new_block_ids: by row, for those that got pages: per KV group, block ids to append to its table. Pages of a row
            in new_rows are in `NewRow.block_ids` already, and not here.
        samples: whether the row reaches its last known token and so samples one. With `max_tokens=0` never.
        zero_block_ids: per KV group, every page handed out since the last step that is not the target of a copy.
    """

    step: int
    freed_rows: list[int] = []
    new_rows: list[NewRow] = []
    rows: list[int] = []
    num_tokens: list[int] = []
    num_computed_tokens: list[int] = []
    new_block_ids: dict[int, list[list[int]]] = {}
    samples: list[bool] = []
    zero_block_ids: list[list[int]] = []
    block_copies: list[BlockCopy] = []

    @property
    def total_tokens(self) -> int:
        """Tokens in the batch."""
        return sum(self.num_tokens)


class TokenMasks(msgspec.Struct, kw_only=True):
    """Which tokens some of the sampling rows of a step may take. Made while its forward pass runs.

    Attributes:
        rows: in the order of the masks.
        bits: a mask per row, `words` 32-bit words each: bit t % 32 of word t // 32 allows token t. The next step writes
            to the same place.
        complete: per row, whether nothing but the end of the text can come, which then is not too early.
        errors: by row, why no mask could be made; what the row samples counts for nothing.
        refused: rows of `errors` whose request is why.
    """

    rows: list[int]
    bits: bytearray
    words: int
    complete: list[bool]
    errors: dict[int, str] = {}
    refused: set[int] = set()


# ---------------------------------------------------------------- worker -> core


class PositionLogprobs(msgspec.Struct, array_like=True):
    """Log probabilities at one position.

    Attributes:
        token_ids: [1 + K] the actual token first, then the K most likely, most likely first (ties: lowest id), or the
            ids of `logprob_token_ids`.
        logprobs: [1 + K] natural log, float32 values; -inf for a masked token under `processed_logprobs`.
        rank: of the actual token among the vocabulary, 1 = most likely.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class PromptLogprobs(msgspec.Struct, array_like=True):
    """Log probabilities of prompt tokens `start` .. `start + len(positions) - 1` (`start` >= 1)."""

    start: int
    positions: list[PositionLogprobs]


class ModelRunnerOutput(msgspec.Struct, kw_only=True):
    """What a step produced, for the rows with `samples` true, in the order of `SchedulerOutput.rows`.

    Attributes:
        token_ids: per sampling row, the new tokens (one; more with speculation).
        logprobs: per sampling row, one entry per new token, or None when not asked for.
        prompt_logprobs: by row, for rows that asked and computed prompt positions in this step.
        errors: by row, a message when this row alone failed (no token left to sample, say); it must end with "error".
        refused: rows of `errors` whose request is why.
    """

    step: int
    rows: list[int] = []
    token_ids: list[list[int]] = []
    logprobs: list[list[PositionLogprobs] | None] = []
    prompt_logprobs: dict[int, PromptLogprobs] = {}
    errors: dict[int, str] = {}
    refused: set[int] = set()


# ---------------------------------------------------------------- core -> client


class EngineOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """News of one sequence; exactly one with `finish_reason` set per request, and it is the last.

    Attributes:
        stop_reason: the stop token id that ended it, when it was not an end-of-sequence token.
        num_cached_tokens: prompt tokens taken from the prefix cache at first admission (set on the first output).
        error: text for the user when finish_reason is "error".
        refused: the error is the user's own: what the request asks for cannot be had.
        scheduled_time_s, first_token_time_s: `time.monotonic()` of the core, sent with the first token.
    """

    request_id: str
    new_token_ids: list[int] = []
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None
    refused: bool = False
    scheduled_time_s: float = 0.0
    first_token_time_s: float = 0.0


class SchedulerStats(msgspec.Struct, kw_only=True):
    """State of the core after a step; counters count since the start.

    Attributes:
        kv_usage: share of pages in use by running requests, 0..1 (the fullest group).
        kv_waste: share of allocated token slots that hold no token, 0..1.
        kv_peak_blocks: most pages of group 0 in use at once.
        kv_peak_waste: `kv_waste` at the moment of `kv_peak_blocks`.
        peak_running: most sequences that held pages at once.
        prompt_tokens, prompt_tokens_cached: of prompts at their first admission; forks are not counted again.
        prefix_cache_queries, prefix_cache_hits: tokens, of the same prompts.
        step_tokens: tokens computed in all steps, recomputed ones included.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    kv_waste: float = 0.0
    kv_peak_blocks: int = 0
    kv_peak_waste: float = 0.0
    peak_running: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    steps: int = 0
    step_tokens: int = 0


class PageMap(msgspec.Struct, kw_only=True, frozen=True):
    """What the pages of one KV group hold at a moment.

    Attributes:
        num_used: pages that sequences hold.
        num_reusable: free pages whose content may be found again.
        stride: `states` tells of every `stride`-th page.
        states: a byte a page: 0 free, 1 free and reusable, 2 held by one table, 3 by several.
    """

    num_blocks: int
    num_used: int
    num_reusable: int
    stride: int
    states: bytes


class EngineOutputs(msgspec.Struct, kw_only=True):
    """All news of one step."""

    outputs: list[EngineOutput] = []
    stats: SchedulerStats | None = None
