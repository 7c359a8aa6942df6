"""A model whose logits depend on every token of the history, read back through the pages, and a small scheduler.

A wrong page, slot, position, window or stale token changes the fake's answer, and `expected_logits` says from the token
ids alone what it should be.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo.attention.batch import AttentionBatch, ForwardBatch
from octavo.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    KVGroupSpec,
    ModelConfig,
    ModelSpec,
    SchedulerConfig,
)
from octavo.messages import BlockCopy, ModelRunnerOutput, NewRow, PromptLogprobs, SchedulerOutput
from octavo.sampling_params import SamplingParams
from octavo.worker.model_runner import ModelRunner

torch.set_num_threads(1)  # tensors this small only lose by being shared out

VOCAB_SIZE = 150
WINDOW = 6
BLOCK_SIZE = 4
PRIME = 65_521
CPU = torch.device("cpu")


def digest(token_ids: Iterable[int]) -> int:
    """A number that depends on all tokens and their order."""
    value = 1
    for token_id in token_ids:
        value = (value * 31 + token_id + 7) % PRIME
    return value


def logits_of(digests: Tensor) -> Tensor:
    """[S] digests -> [S, V] float32, spread over about -6 .. 6."""
    ids = torch.arange(VOCAB_SIZE)
    mixed = (digests.long()[:, None] * (2 * ids + 1) + ids * ids * 31) % 9973
    return (mixed.float() / 9973 - 0.5) * 12


def expected_logits(token_ids: Sequence[int]) -> Tensor:
    """What the fake says after these tokens. [V]"""
    full, recent = digest(token_ids), digest(token_ids[-WINDOW:])
    return logits_of(torch.tensor([(full + 3 * recent) % PRIME]))[0]


class FakeModel:
    """Layer 0 of each group holds (token id, position) of every token; layer 1 of the first group their negatives."""

    vocab_size = VOCAB_SIZE

    def __init__(self) -> None:
        self.kv_groups = [
            KVGroupSpec("full", 2, num_kv_heads=1, head_dim=2),
            KVGroupSpec(f"sliding-{WINDOW}", 1, num_kv_heads=2, head_dim=2, window=WINDOW),
        ]
        self.poisoned: set[int] = set()
        self.most_logits = 0

    def forward(self, batch: ForwardBatch) -> Tensor:
        for attention, pool in zip(batch.attention, batch.kv_pages, strict=True):
            page, offset = attention.slot_mapping // BLOCK_SIZE, attention.slot_mapping % BLOCK_SIZE
            what = torch.stack((batch.input_ids, batch.positions), -1).float()
            for layer, sign in ((0, 1), (pool.shape[0] - 1, 1 - 2 * (pool.shape[0] - 1))):
                pool[layer].permute(1, 3, 0, 2, 4)[page, offset] = sign * what[:, None, None]
        full, sliding = batch.attention
        hidden = []
        for row in range(len(full.seq_lens)):
            start, end = int(full.query_start[row]), int(full.query_start[row + 1])
            for token in range(start, end):
                position = int(batch.positions[token])
                assert position == int(full.seq_lens[row]) - (end - token)
                known = read(full, batch.kv_pages[0], row, 0, position)
                recent = read(sliding, batch.kv_pages[1], row, max(0, position + 1 - WINDOW), position)
                hidden.append((digest(known) + 3 * digest(recent)) % PRIME)
        return torch.tensor(hidden, dtype=torch.float32)[:, None]

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        self.most_logits = max(self.most_logits, len(hidden) * VOCAB_SIZE)
        logits = logits_of(hidden[:, 0])
        for i, value in enumerate(hidden[:, 0].tolist()):
            if int(value) in self.poisoned:
                logits[i, 17] = float("nan")
        return out.copy_(logits)


def read(attention: AttentionBatch, pool: Tensor, row: int, first: int, last: int) -> list[int]:
    """Token ids at positions first .. last, on which all copies in the pages agree."""
    positions = torch.arange(first, last + 1)
    pages = attention.block_table[row, positions // BLOCK_SIZE].long()
    assert (pages >= 0).all()
    stored = pool.permute(2, 4, 0, 1, 3, 5)[pages, positions % BLOCK_SIZE]  # [P, layer, keys or values, head, 2]
    if pool.shape[0] == 2:
        stored = torch.cat((stored[:, 0], -stored[:, 1]), 1)
    stored = stored.flatten(1, -2)
    assert (stored[..., 1] == positions[:, None]).all()
    assert (stored[..., 0] == stored[:, :1, 0]).all()
    return [int(token_id) for token_id in stored[:, 0, 0].tolist()]


def make_config(
    max_rows: int = 4,
    max_model_len: int = 64,
    token_budget: int = 64,
    logprobs_mode: str = "raw_logprobs",
    spec: ModelSpec | None = None,
    enforce_eager: bool = False,
    **cache: object,
) -> EngineConfig:
    """A resolved configuration for the fake, or for the model of `spec`."""
    return EngineConfig(
        model=ModelConfig(model="fake", logprobs_mode=logprobs_mode),
        cache=CacheConfig(**{"block_size": BLOCK_SIZE, **cache}),  # type: ignore[arg-type]
        scheduler=SchedulerConfig(max_num_seqs=max_rows, max_num_batched_tokens=token_budget),
        device=DeviceConfig(device="cpu", threads=1, enforce_eager=enforce_eager),
        spec=spec or ModelSpec("fake", "", "safetensors", "Fake", {}, 64, VOCAB_SIZE, (2,), {}, "", "float32"),
        dtype="float32",
        max_model_len=max_model_len,
        served_model_name="fake",
    )


@dataclass
class Running:
    """One request as a scheduler knows it."""

    name: str
    token_ids: list[int]
    num_prompt: int
    params: SamplingParams
    seed: int = 0
    sample_index: int = 0
    eos: list[int] = field(default_factory=list)
    bad_words: list[list[int]] = field(default_factory=list)
    row: int | None = None
    computed: int = 0
    blocks: list[list[int]] = field(default_factory=list)
    seated: bool = False
    logprobs: list[object] = field(default_factory=list)
    prompt_logprobs: dict[int, object] = field(default_factory=dict)
    error: str | None = None
    done: bool = False

    @property
    def output(self) -> list[int]:
        return self.token_ids[self.num_prompt :]


class World:
    """A runner and what a scheduler would do to it, step by step, with pages handed out in random order."""

    def __init__(
        self, max_rows: int = 4, num_blocks: int = 80, seed: int = 0, logprobs_mode: str = "raw_logprobs"
    ) -> None:
        self.model = FakeModel()
        self.runner = ModelRunner(
            self.model, make_config(max_rows, logprobs_mode=logprobs_mode), (num_blocks,) * 2, torch.float32, CPU
        )
        self.random = random.Random(seed)
        self.free_blocks = [self.random.sample(range(num_blocks), num_blocks) for _ in range(2)]
        self.free_rows = list(range(max_rows))
        self.freed: list[int] = []
        self.copies: list[BlockCopy] = []
        self.step_number = 0
        for pool in self.runner.pages.pools:
            pool.fill_(float("nan"))  # whatever is not cleared or written shows

    def start(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        seed: int = 0,
        eos: Sequence[int] = (),
        bad_words: Sequence[Sequence[int]] = (),
        name: str = "",
    ) -> Running:
        """A new sequence, not yet in a row."""
        words = [list(word) for word in bad_words]
        return Running(name, list(prompt), len(prompt), params, seed, eos=list(eos), bad_words=words)

    def leave(self, sequence: Running) -> None:
        """End or preempt: the row and all pages are given back."""
        assert sequence.row is not None
        self.freed.append(sequence.row)
        self.free_rows.append(sequence.row)
        for free, blocks in zip(self.free_blocks, sequence.blocks, strict=True):
            free.extend(block for block in blocks if block >= 0)
            self.random.shuffle(free)
        sequence.row, sequence.computed, sequence.blocks, sequence.seated = None, 0, [], False

    def fork(self, parent: Running, params: SamplingParams, seed: int) -> Running:
        """A sequence with the parent's computed tokens: whole pages are shared, the last partial one is copied.

        Pages have no counters here, so neither may leave before the test ends.
        """
        child = Running("", parent.token_ids[:], parent.num_prompt, params, seed)
        child.computed = min(parent.computed, len(child.token_ids) - 1)
        child.row = self.free_rows.pop()
        whole = child.computed // BLOCK_SIZE
        child.blocks = [blocks[:whole] for blocks in parent.blocks]
        for group, blocks in enumerate(child.blocks):
            if child.computed % BLOCK_SIZE:
                page = self.free_blocks[group].pop()
                self.copies.append(BlockCopy(group, parent.blocks[group][whole], page))
                blocks.append(page)
        return child

    def step(self, work: dict[int, tuple[Running, int]] | Sequence[tuple[Running, int]]) -> ModelRunnerOutput:
        """Compute so many tokens of each sequence, in this order."""
        plan = SchedulerOutput(step=self.step_number, freed_rows=self.freed, zero_block_ids=[[], []])
        plan.block_copies, self.copies, self.freed = self.copies, [], []
        self.step_number += 1
        pairs = list(work.values()) if isinstance(work, dict) else list(work)
        for sequence, count in pairs:
            if sequence.row is None:
                sequence.row, sequence.blocks = self.free_rows.pop(), [[], []]
            fresh = self._allocate(sequence, sequence.computed + count, plan)
            if not sequence.seated:
                plan.new_rows.append(self._new_row(sequence))
                sequence.seated = True
            elif any(fresh):
                plan.new_block_ids[sequence.row] = fresh
            plan.rows.append(sequence.row)
            plan.num_tokens.append(count)
            plan.num_computed_tokens.append(sequence.computed)
            reaches_end = sequence.computed + count == len(sequence.token_ids)
            plan.samples.append(reaches_end and sequence.params.max_tokens != 0)
        self.runner.execute(plan)
        output = self.runner.sample(plan)
        self._update(pairs, output)
        for sequence, _ in pairs:
            self._expire(sequence)
        return output

    def run(self, sequences: Sequence[Running], *, preempt: float = 0.0, chunk: int = 64) -> None:
        """Finish all of them by a random schedule: random chunks, order and, with this chance per step, preemptions."""
        while not all(s.done for s in sequences):
            work: list[tuple[Running, int]] = []
            seats, budget = len(self.free_rows), 64
            for sequence in self.random.sample(sequences, len(sequences)):
                if sequence.done or (sequence.row is None and seats == 0):
                    continue
                seats -= sequence.row is None
                left = min(len(sequence.token_ids) - sequence.computed, budget)
                if left:
                    count = self.random.randint(1, min(left, chunk)) if left > 1 else 1
                    work.append((sequence, count))
                    budget -= count
            self.step(work)
            for sequence in sequences:
                if sequence.row is not None and (sequence.done or self.random.random() < preempt):
                    self.leave(sequence)

    def _allocate(self, sequence: Running, num_tokens: int, plan: SchedulerOutput) -> list[list[int]]:
        fresh: list[list[int]] = []
        for group, blocks in enumerate(sequence.blocks):
            count = -(-num_tokens // BLOCK_SIZE) - len(blocks)
            new = [self.free_blocks[group].pop() for _ in range(count)]
            plan.zero_block_ids[group].extend(new)
            blocks.extend(new)
            fresh.append(new)
        return fresh

    def _expire(self, sequence: Running) -> None:
        """Let others have the pages of the sliding group that no later token sees."""
        for index in range(max(0, sequence.computed + 1 - WINDOW) // BLOCK_SIZE):
            if sequence.blocks[1][index] >= 0:
                self.free_blocks[1].insert(0, sequence.blocks[1][index])
                sequence.blocks[1][index] = -1

    def _new_row(self, sequence: Running) -> NewRow:
        assert sequence.row is not None
        return NewRow(
            request_id=sequence.name,
            row=sequence.row,
            token_ids=sequence.token_ids[:],
            num_prompt_tokens=sequence.num_prompt,
            num_computed_tokens=sequence.computed,
            block_ids=[blocks[:] for blocks in sequence.blocks],
            sampling=sequence.params,
            eos_token_ids=sequence.eos,
            bad_words_token_ids=sequence.bad_words,
            seed=sequence.seed,
            sample_index=sequence.sample_index,
        )

    def _update(self, pairs: Sequence[tuple[Running, int]], output: ModelRunnerOutput) -> None:
        by_row = {sequence.row: sequence for sequence, _ in pairs}
        for sequence, count in pairs:
            sequence.computed += count
        for row, token_ids, logprobs in zip(output.rows, output.token_ids, output.logprobs, strict=True):
            by_row[row].token_ids += token_ids
            by_row[row].logprobs += logprobs or []
        for row, message in output.errors.items():
            by_row[row].error = message
        for row, scored in output.prompt_logprobs.items():
            merge(by_row[row].prompt_logprobs, scored)
        for sequence, _ in pairs:
            complete = len(sequence.output) >= (sequence.params.max_tokens or 0)
            sequence.done = sequence.error is not None or (complete and sequence.computed >= sequence.num_prompt)


def merge(known: dict[int, object], scored: PromptLogprobs) -> None:
    """Add scores by position; a position scored twice, after a preemption, has the same ones."""
    for position, value in enumerate(scored.positions, start=scored.start):
        assert known.setdefault(position, value) == value
