"""Sampling parameters and counters of the running sequences, by row. What a row does not use costs it nothing.

Everything is made from a `NewRow` alone, so a sequence that comes back after a preemption samples as if it had never
been away. Knows no logits; `worker.sampler` applies what is kept here.
"""

from dataclasses import dataclass
from enum import IntFlag
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.messages import NewRow
from octavo.ops.random import DrawKeys
from octavo.ops.sample import SampleParams
from octavo.sampling_params import SamplingParams


class Uses(IntFlag):
    """What a row asks for, so that a step can tell at once what it need not do."""

    PENALTIES = 1
    COUNTS = 2  # presence or frequency penalty
    ALLOWED = 4
    BANS = 8  # bad_words, or min_tokens
    BIAS = 16
    LOGPROBS = 32
    PROMPT_LOGPROBS = 64

    EDITS = PENALTIES | ALLOWED | BANS | BIAS


class BadWord(NamedTuple):
    """`last` must not follow `before` (empty: never)."""

    before: NDArray[np.int32]
    last: int


@dataclass(slots=True)
class Edits:
    """Changes to a row's logits, ids in the vocabulary only.

    Attributes:
        end_ids: excluded while the sequence has fewer than `min_length` tokens, prompt included.
        allowed_ids: all others are excluded; None allows all.
    """

    min_length: int
    end_ids: NDArray[np.int64]
    bad_words: list[BadWord]
    allowed_ids: NDArray[np.int64] | None
    bias_ids: NDArray[np.int64]
    bias: NDArray[np.float32]


class SamplingState:
    """Arrays [rows] on the host, gathered per step; counters [slots, vocab] on the device for rows with penalties.

    Attributes:
        uses: [rows] int32, `Uses` of each row.
        num_logprobs, num_prompt_logprobs: [rows] int64, how many of the most likely tokens to report.
        reported_ids: of the rows that report chosen tokens instead.
        edits: of the rows that have any.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self.uses = np.zeros(max_rows, np.int32)
        self.temperature = np.ones(max_rows, np.float32)
        self.top_k = np.zeros(max_rows, np.int64)
        self.top_p = np.ones(max_rows, np.float64)
        self.min_p = np.zeros(max_rows, np.float64)
        self.seed = np.zeros(max_rows, np.int64)
        self.sample_index = np.zeros(max_rows, np.int64)
        self.presence_penalty = np.zeros(max_rows, np.float32)
        self.frequency_penalty = np.zeros(max_rows, np.float32)
        self.repetition_penalty = np.ones(max_rows, np.float32)
        self.num_logprobs = np.zeros(max_rows, np.int64)
        self.num_prompt_logprobs = np.zeros(max_rows, np.int64)
        self.reported_ids: dict[int, NDArray[np.int64]] = {}
        self.edits: dict[int, Edits] = {}
        self.counts = OutputCounts(max_rows, vocab_size, device)

    def add(self, new: NewRow) -> None:
        """Take over the parameters of a sequence that takes a row."""
        self.free(new.row)
        row, params = new.row, new.sampling
        self.temperature[row] = 0.0 if params.greedy else params.temperature
        self.top_k[row] = params.top_k if params.top_k < self.vocab_size else 0
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.seed[row] = new.seed
        self.sample_index[row] = new.sample_index
        self.presence_penalty[row] = params.presence_penalty
        self.frequency_penalty[row] = params.frequency_penalty
        self.repetition_penalty[row] = params.repetition_penalty
        self.num_logprobs[row] = 0 if params.logprob_token_ids else self._num_top(params.logprobs)
        self.num_prompt_logprobs[row] = self._num_top(params.prompt_logprobs)
        edits = self._edits(new)
        uses = uses_of(params, edits)
        if len(new.token_ids) > new.num_prompt_tokens:  # back after a preemption: the prompt was reported before
            uses &= ~Uses.PROMPT_LOGPROBS
        if uses & Uses.EDITS:
            self.edits[row] = edits
        if params.logprob_token_ids:
            self.reported_ids[row] = np.array(params.logprob_token_ids, np.int64)
        if uses & Uses.COUNTS:
            self.counts.add(row, new.token_ids[new.num_prompt_tokens :])
        self.uses[row] = uses

    def free(self, row: int) -> None:
        """Forget a row; one that is empty already is left alone."""
        self.edits.pop(row, None)
        self.reported_ids.pop(row, None)
        self.counts.free(row)
        self.uses[row] = 0

    def any_use(self, rows: NDArray[np.int64]) -> int:
        """`Uses` of all `rows` together."""
        return int(np.bitwise_or.reduce(self.uses[rows]))

    def using(self, rows: NDArray[np.int64], what: Uses) -> NDArray[np.int64]:
        """Indices into `rows` of those that use any of `what`."""
        return np.flatnonzero(self.uses[rows] & int(what))

    def gather(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> SampleParams:
        """Parameters of the op `sample` for these rows, whose next tokens stand at `positions`."""
        return SampleParams(
            temperature=self._on_device(self.temperature[rows]),
            top_k=self._on_device(self.top_k[rows]),
            top_p=self._on_device(self.top_p[rows]),
            min_p=self._on_device(self.min_p[rows]),
            keys=DrawKeys(
                seed=self._on_device(self.seed[rows]),
                sample_index=self._on_device(self.sample_index[rows]),
                position=self._on_device(positions),
            ),
        )

    def _on_device(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _num_top(self, asked: int | None) -> int:
        return min(self.vocab_size, self.vocab_size if asked == -1 else asked or 0)

    def _edits(self, new: NewRow) -> Edits:
        """Ids outside the vocabulary can neither be sampled nor need to be excluded, so they are dropped."""
        params = new.sampling
        bias = {i: value for i, value in (params.logit_bias or {}).items() if i < self.vocab_size}
        min_length = new.num_prompt_tokens + params.min_tokens if params.min_tokens else 0
        return Edits(
            min_length=min_length,
            end_ids=self._known([*new.eos_token_ids, *(params.stop_token_ids or [])]),
            bad_words=[
                BadWord(np.array(ids[:-1], np.int32), ids[-1])
                for ids in new.bad_words_token_ids
                if ids and ids[-1] < self.vocab_size
            ],
            allowed_ids=None if params.allowed_token_ids is None else self._known(params.allowed_token_ids),
            bias_ids=np.array(list(bias), np.int64),
            bias=np.array(list(bias.values()), np.float32),
        )

    def _known(self, token_ids: list[int]) -> NDArray[np.int64]:
        return np.array([i for i in dict.fromkeys(token_ids) if i < self.vocab_size], np.int64)


def uses_of(params: SamplingParams, edits: Edits) -> Uses:
    """What a row with these parameters asks for."""
    asked = (
        (Uses.PENALTIES, params.repetition_penalty != 1.0),
        (Uses.PENALTIES | Uses.COUNTS, params.presence_penalty != 0.0 or params.frequency_penalty != 0.0),
        (Uses.ALLOWED, edits.allowed_ids is not None),
        (Uses.BANS, bool(edits.bad_words) or (edits.min_length > 0 and len(edits.end_ids) > 0)),
        (Uses.BIAS, len(edits.bias_ids) > 0),
        (Uses.LOGPROBS, params.wants_logprobs),
        (Uses.PROMPT_LOGPROBS, params.prompt_logprobs is not None),
    )
    uses = Uses(0)
    for flag, on in asked:
        if on:
            uses |= flag
    return uses


class OutputCounts:
    """How often each row has generated each token. Slot 0 is always zero, for rows that do not count."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.table = torch.zeros((1, vocab_size), dtype=torch.int32, device=device)
        self.slot_of_row = np.zeros(max_rows, np.int64)
        self._free_slots: list[int] = []

    def add(self, row: int, token_ids: list[int]) -> None:
        """Start counting for a row that has generated these tokens already."""
        if not self._free_slots:
            self._grow()
        slot = self._free_slots.pop()
        self.slot_of_row[row] = slot
        vocab_size = self.table.shape[1]
        self.table[slot] = torch.bincount(torch.tensor(token_ids, dtype=torch.int64), minlength=vocab_size)

    def free(self, row: int) -> None:
        """Stop counting for a row, if it does."""
        slot = int(self.slot_of_row[row])
        if slot:
            self._free_slots.append(slot)
            self.slot_of_row[row] = 0

    def count(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """One more of `token_ids[i]` in `rows[i]`, all of which count."""
        slots = torch.from_numpy(self.slot_of_row[rows]).to(self.table.device)
        self.table[slots, torch.from_numpy(token_ids).to(self.table.device)] += 1

    def _grow(self) -> None:
        old = len(self.table)
        self.table = torch.cat((self.table, torch.zeros_like(self.table)))
        self._free_slots.extend(range(old, 2 * old))
