"""Run schedules on one checkpoint and hold every sequence against the same sequence alone: one request, one thread, the
whole prompt in one step, no cache, pages to spare. Tokens and float32 logprobs must be equal to the last bit.
"""

import struct
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from octavo.engine.client import InProcessClient
from octavo.engine.resolve import make_config
from octavo.kernels.cpu import native
from octavo.messages import EngineOutput, EngineRequest, PositionLogprobs, SchedulerOutput
from octavo.sampling_params import SamplingParams
from tests.engine.worlds import write_tokenizer
from tests.schedules.schedule import MAX_LENGTH, VOCAB_SIZE, Ask, Schedule, schedules
from tests.tiny import tiny_checkpoint

SHAPES = {
    "llama": ("llama", {}),
    "gemma3": ("gemma3", {}),
    # One layer with a long sum (K = 8200), ragged N and head sizes beside powers of two.
    "wide-80": ("llama", {"num_hidden_layers": 1, "head_dim": 80, "hidden_size": 72, "intermediate_size": 8200}),
    "wide-256": ("gemma3", {"num_hidden_layers": 1, "head_dim": 256, "hidden_size": 72, "intermediate_size": 8200}),
}
CELLS = (*(f"{shape}/{dtype}" for shape in SHAPES for dtype in ("float32", "bfloat16")), "llama/float16")

MAX_STEPS = 5000


class Mismatch(AssertionError):
    """A schedule changed what a request answers, at `position` of the sequence where that is known."""

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class Bits(NamedTuple):
    """One position's logprobs: token ids, float32 values as uint32, rank of the actual token."""

    token_ids: tuple[int, ...]
    values: tuple[int, ...]
    rank: int


def bits(position: PositionLogprobs) -> Bits:
    """Exact: every value must be a float32."""
    packed = struct.pack(f"<{len(position.logprobs)}f", *position.logprobs)
    assert list(struct.unpack(f"<{len(position.logprobs)}f", packed)) == position.logprobs
    return Bits(tuple(position.token_ids), struct.unpack(f"<{len(position.logprobs)}I", packed), position.rank)


@dataclass
class Heard:
    """What a sequence has said so far."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Bits] = field(default_factory=list)
    prompt_logprobs: dict[int, Bits] = field(default_factory=dict)
    finish_reason: str | None = None

    def take(self, output: EngineOutput) -> None:
        """Add news. A prompt scored again, after a preemption, must score the same."""
        assert self.finish_reason is None, f"{output.request_id} goes on after its end"
        self.token_ids += output.new_token_ids
        self.logprobs += map(bits, output.logprobs or [])
        assert len(self.logprobs) == len(self.token_ids)
        if output.prompt_logprobs is not None:
            for place, position in enumerate(output.prompt_logprobs.positions, output.prompt_logprobs.start):
                if self.prompt_logprobs.setdefault(place, bits(position)) != bits(position):
                    raise Mismatch(f"{output.request_id}: prompt token {place} was scored twice, and differently")
        if output.finish_reason == "error":
            raise Mismatch(f"{output.request_id} failed: {output.error}")
        self.finish_reason = output.finish_reason


Place = tuple[int, int, int]
"""Position, layer within its KV group, KV group."""

Digests = dict[str, dict[Place, set[int]]]


class KVTrace:
    """Adds digests of every key and value that a client's model writes to `digests`, by request."""

    def __init__(self, client: InProcessClient, digests: Digests) -> None:
        self.digests = digests
        self._names: dict[int, str] = {}
        self._runner = client._core.executor._worker._runner
        self._execute, self._runner.execute = self._runner.execute, self._run

    def _run(self, plan: SchedulerOutput) -> None:
        self._execute(plan)
        self._names.update((new.row, new.request_id) for new in plan.new_rows)
        for row, count, first in zip(plan.rows, plan.num_tokens, plan.num_computed_tokens, strict=True):
            places = self.digests.setdefault(self._names[row], {})
            for group, pool in enumerate(self._runner.pages.pools):
                block_size = pool.shape[4]
                for position in range(first, first + count):
                    block = self._runner.rows.block_tables[group][row, position // block_size]
                    written = pool[:, :, block, :, position % block_size].contiguous().view(torch.uint8)
                    for layer, values in enumerate(written.numpy()):
                        places.setdefault((position, layer, group), set()).add(zlib.crc32(values.tobytes()))


def set_threads(count: int) -> None:
    """As `--threads` does, for the engines that are there."""
    if not native.set_num_threads(count):
        torch.set_num_threads(count)


@dataclass
class World:
    """One checkpoint in one dtype.

    Attributes:
        counts: what the schedules made happen, to judge whether they are worth anything.
        max_threads: schedules that ask for more get so many.
        answers: a checksum of everything that was said in them, the same in every process.
    """

    folder: Path
    dtype: str
    counts: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    max_threads: int = 4

    def __post_init__(self) -> None:
        self._known: dict[bytes, Heard] = {}
        self._alone = self._client(Schedule((Ask(num_own=MAX_LENGTH),), max_num_seqs=1, caching=False))

    def close(self) -> None:
        """Give the model back."""
        self._alone.close()

    def fuzz(self, num_schedules: int, start: int, shrink: bool = False) -> None:
        """Check so many random schedules; hypothesis adds the one that fails to the error, the smallest if `shrink`."""

        @seed(start)
        @settings(
            max_examples=num_schedules,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            report_multiple_bugs=False,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(schedules)
        def holds(schedule: Schedule) -> None:
            self.check(schedule)

        holds()

    def check(self, schedule: Schedule) -> None:
        """Raise `Mismatch` unless every sequence of the schedule says what it says alone."""
        heard = self.run(schedule)
        self.answers = zlib.crc32(repr(sorted(heard.items())).encode(), self.answers)
        set_threads(1)
        for index, ask in enumerate(schedule.asks):
            for request in ask.requests(str(index)):
                alone = self.alone(request)
                try:
                    compare(heard[request.request_id], alone, len(request.prompt_token_ids))
                except Mismatch as err:
                    raise Mismatch(
                        f"{request.request_id}: {err}; {self._first_difference(schedule, request, err.position)}"
                    ) from None

    def run(self, schedule: Schedule, digests: Digests | None = None) -> dict[str, Heard]:
        """Everything said under a schedule, by request id."""
        client = self._client(schedule)
        try:
            for grammar in {ask.grammar for ask in schedule.asks} - {None}:
                client._core._grammars.compile(grammar).result()  # how long that takes must not decide about aborts
            if schedule.warm:
                for index, ask in enumerate(schedule.asks):
                    client.submit(
                        replace(ask, max_tokens=1, n=1, scored=False, pattern=None, options={}).requests(
                            f"warm-{index}"
                        )
                    )
                drain(client)
            if digests is not None:
                KVTrace(client, digests)
            heard = self._drive(client, schedule)
            stats = client.stats()
        finally:
            client.close()
        self.counts.update(
            schedules=1,
            sequences=len(heard),
            preemptions=stats.num_preemptions,
            cached_tokens=stats.prompt_tokens_cached,
            forks=sum(ask.n - 1 for ask in schedule.asks),
            aborts=sum(each.finish_reason == "abort" for each in heard.values()),
        )
        return heard

    def alone(self, request: EngineRequest) -> Heard:
        """What a sequence says with the engine to itself; scoring the whole of it afterwards must give the same."""
        key = msgspec.msgpack.encode(msgspec.structs.replace(request, request_id="", fork_of=None))
        if key not in self._known:
            heard = self._ask(request)
            whole = msgspec.structs.replace(
                request,
                prompt_token_ids=request.prompt_token_ids + heard.token_ids,
                sampling=SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=2),
            )
            scores = self._ask(whole).prompt_logprobs
            first = len(request.prompt_token_ids)
            given = heard.prompt_logprobs | dict(enumerate(heard.logprobs, first))
            for place, position in given.items():
                if scores[place] != position:
                    raise Mismatch(f"alone, token {place} has logprobs {position} but is scored {scores[place]}")
            self._known[key] = heard
        return self._known[key]

    def _ask(self, request: EngineRequest) -> Heard:
        self._alone.submit([msgspec.structs.replace(request, request_id="alone", fork_of=None)])
        return drain(self._alone)["alone"]

    def _client(self, schedule: Schedule) -> InProcessClient:
        config = make_config(
            model=str(self.folder),
            device="cpu",
            dtype=self.dtype,
            threads=min(schedule.threads, self.max_threads),
            max_model_len=min(MAX_LENGTH, (schedule.num_blocks - 1) * schedule.block_size),
            max_num_seqs=schedule.max_num_seqs,
            max_num_batched_tokens=schedule.token_budget,
            long_prefill_token_threshold=schedule.prefill_threshold,
            scheduling_policy=schedule.policy,
            block_size=schedule.block_size,
            num_gpu_blocks_override=schedule.num_blocks,
            enable_prefix_caching=schedule.caching,
        )
        return InProcessClient(config)

    def _drive(self, client: InProcessClient, schedule: Schedule) -> dict[str, Heard]:
        requests = [ask.requests(str(index)) for index, ask in enumerate(schedule.asks)]
        heard = {request.request_id: Heard() for each in requests for request in each}
        last_event = max([ask.arrives + (ask.leaves or 0) for ask in schedule.asks])
        for step in range(MAX_STEPS):
            news: list[EngineOutput] = []
            for ask, each in zip(schedule.asks, requests, strict=True):
                if ask.arrives == step:
                    client.submit(each)
                if ask.leaves is not None and ask.arrives + ask.leaves == step:
                    news += client.abort([request.request_id for request in each])
            if step in schedule.resets:
                client.reset_prefix_cache()
            if client.has_unfinished():
                news += client.step().outputs
            elif step > last_event:
                return heard
            for output in news:
                heard[output.request_id].take(output)
        raise Mismatch(f"not done after {MAX_STEPS} steps")

    def _first_difference(self, schedule: Schedule, request: EngineRequest, end: int | None) -> str:
        """Run both again and name the first key or value before position `end` that differs."""
        together: Digests = {}
        self.run(schedule, together)
        set_threads(1)
        client = self._client(Schedule((Ask(num_own=MAX_LENGTH),), max_num_seqs=1, caching=False))
        alone: Digests = {}
        KVTrace(client, alone)
        client.submit([msgspec.structs.replace(request, fork_of=None)])
        drain(client)
        expected = alone[request.request_id]
        for place, found in sorted(together.get(request.request_id, {}).items()):
            if (end is None or place[0] < end) and place in expected and found != expected[place]:
                position, layer, group = place
                return f"keys and values differ first at position {position}, layer {layer} of KV group {group}"
        return "its keys and values up to there are the same"


def drain(client: InProcessClient) -> dict[str, Heard]:
    """Step until nothing is left."""
    heard: dict[str, Heard] = {}
    while client.has_unfinished():
        for output in client.step().outputs:
            heard.setdefault(output.request_id, Heard()).take(output)
    return heard


def compare(heard: Heard, alone: Heard, num_prompt_tokens: int) -> None:
    """Raise `Mismatch` at the first position that differs; an aborted sequence may be shorter."""
    for place, position in sorted(heard.prompt_logprobs.items()):
        if position != alone.prompt_logprobs[place]:
            message = f"prompt token {place} scores {position}, alone {alone.prompt_logprobs[place]}"
            raise Mismatch(message, place)
    pairs = zip(heard.token_ids, alone.token_ids, heard.logprobs, alone.logprobs, strict=False)
    for index, (token_id, expected, position, expected_position) in enumerate(pairs):
        if (token_id, position) != (expected, expected_position):
            message = f"answer token {index} is {token_id} {position}, alone {expected} {expected_position}"
            raise Mismatch(message, num_prompt_tokens + index)
    if heard.finish_reason == "abort":
        assert len(heard.token_ids) <= len(alone.token_ids)
        return
    if len(heard.prompt_logprobs) != len(alone.prompt_logprobs):
        raise Mismatch(f"{len(heard.prompt_logprobs)} prompt tokens scored, not {len(alone.prompt_logprobs)}")
    if (len(heard.token_ids), heard.finish_reason) != (len(alone.token_ids), alone.finish_reason):
        raise Mismatch(
            f"{len(heard.token_ids)} tokens until {heard.finish_reason}, "
            f"alone {len(alone.token_ids)} until {alone.finish_reason}"
        )


def checkpoint(root: Path, shape: str) -> Path:
    """The random checkpoint of a shape, made once per root folder."""
    family, overrides = SHAPES[shape]
    folder = root / shape
    if not folder.exists():
        tiny_checkpoint(family, folder, vocab_size=VOCAB_SIZE, max_position_embeddings=MAX_LENGTH, **overrides)
        write_tokenizer(folder)
    return folder
