"""From raw logits to token ids: exclusions, bias, penalties, then the op `sample`. Order and meaning are vLLM's:

1. the raw logits are kept for log probabilities, if asked for;
2. exclusions: the grammar's mask, allowed_token_ids, bad_words, min_tokens;
3. logit_bias;
4. penalties: repetition (prompt and answer), frequency and presence (answer);
5. temperature, min_p, top_k, top_p, and the choice itself.

Steps 2 to 4 touch single logits, or a mask's, of rows that ask for it. Knows rows; no model, no pages.
"""

import math
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.messages import NewRow, PositionLogprobs, TokenMasks
from octavo.ops.mask_logits import mask_logits
from octavo.ops.rank_tokens import rank_tokens, values_of
from octavo.ops.sample import NO_TOKEN_LEFT, sample
from octavo.worker.logprobs import LogprobsMode, to_messages
from octavo.worker.rows import Rows
from octavo.worker.sampling_state import Edits, SamplingState, Uses

Ints = NDArray[np.int64]

NOT_FINITE_MESSAGE = "the model's logits {where} are not finite (NaN or infinity); check the weights and the dtype"


@dataclass(slots=True)
class Sampled:
    """Outcome for S rows, in the order they were given.

    Attributes:
        token_ids: [S] int64, negative where there is an error.
        logprobs: by index 0 .. S - 1, for rows that asked and have no error.
        errors: by index, a message.
    """

    token_ids: Ints
    logprobs: dict[int, PositionLogprobs]
    errors: dict[int, str]


class RowMasks(NamedTuple):
    """Which tokens some rows may take.

    Attributes:
        rows: [C]
        bits: [C, ceil(V / 32)] int32, as `mask_logits` takes them.
        complete: rows whose text can only end; min_tokens does not hold them back.
    """

    rows: Ints
    bits: Tensor
    complete: frozenset[int]

    @classmethod
    def of(cls, masks: TokenMasks, device: torch.device) -> "RowMasks":
        """Read what came with a step, without copying it on a CPU."""
        count = len(masks.rows)
        bits = torch.empty((0, masks.words), dtype=torch.int32)
        if count:
            bits = torch.frombuffer(masks.bits, dtype=torch.int32, count=count * masks.words).view(count, masks.words)
        complete = frozenset(row for row, done in zip(masks.rows, masks.complete, strict=True) if done)
        return cls(np.array(masks.rows, np.int64), bits.to(device, non_blocking=True), complete)


class Elements(NamedTuple):
    """Single elements of the logits: index [N] of the row in the batch, token id [N]."""

    row: Tensor
    token_id: Tensor


class Sampler:
    """Samples for the sequences in `rows`, and keeps what their parameters need.

    Args:
        logprobs_mode: value of `--logprobs-mode`.
    """

    def __init__(self, rows: Rows, vocab_size: int, logprobs_mode: str, device: torch.device) -> None:
        self.rows = rows
        self.state = SamplingState(len(rows.num_tokens), vocab_size, device)
        self.mode = LogprobsMode.parse(logprobs_mode)
        self.device = device

    def add(self, new: NewRow) -> None:
        """Take over the parameters of a sequence that takes a row."""
        self.state.add(new)

    def free(self, row: int) -> None:
        """Forget a row."""
        self.state.free(row)

    def sample(self, logits: Tensor, rows: Ints, masks: RowMasks | None = None) -> Sampled:
        """Choose the next token of each row and count it; appending it is the caller's. Counts change last: what raises
        has changed nothing, and may be tried again with fewer rows.

        Args:
            logits: [S, V] float32, **overwritten**.
            rows: [S]
            masks: of some of them; may name others too.
        """
        uses = self.state.any_use(rows)
        params = self.state.gather(rows, self.rows.num_tokens[rows])
        asked = self.state.using(rows, Uses.LOGPROBS)
        asked_index = self._on_device(asked)
        processed = torch.empty_like(logits) if len(asked) and self.mode.processed else None
        edits = masks is not None or uses & Uses.EDITS
        apart = len(asked) > 0 and (len(asked) < len(rows) or edits)
        reported = logits[asked_index] if apart else logits
        if edits:
            self._edit(logits, rows, masks)
        chosen = sample(logits, params, processed=processed)
        token_ids: Ints = chosen.cpu().numpy()  # the one place where a step waits for the device
        errors = {int(i): self._error(int(rows[i]), int(token_ids[i])) for i in np.flatnonzero(token_ids < 0)}
        logprobs = {}
        if len(asked):
            reported = reported if processed is None else processed[asked_index]
            positions = self._report(reported, chosen[asked_index].clamp_(min=0), rows[asked])
            pairs = zip(asked.tolist(), positions, strict=True)
            logprobs = {i: position for i, position in pairs if i not in errors}
        if uses & Uses.COUNTS:
            counting = self.state.using(rows, Uses.COUNTS)
            counting = counting[token_ids[counting] >= 0]
            self.state.counts.count(rows[counting], token_ids[counting])
        return Sampled(token_ids, logprobs, errors)

    def _report(self, logits: Tensor, chosen: Tensor, rows: Ints) -> list[PositionLogprobs]:
        """What is told of the probabilities of each row's chosen token and of others: the most likely ones, or those
        that the row names.
        """
        num_top, reported_ids = self.state.num_logprobs[rows].tolist(), self.state.reported_ids
        ranked = rank_tokens(logits, chosen, max(num_top), normalized=self.mode.normalized)
        positions = to_messages(ranked, num_top)
        naming = [i for i, row in enumerate(rows.tolist()) if row in reported_ids] if reported_ids else []
        if naming:
            named = [reported_ids[row] for row in rows[naming].tolist()]
            elements = self._elements(np.array(naming), named)
            values = iter(values_of(logits[elements], ranked.log_sums[elements.row]).tolist())
            for i, ids in zip(naming, named, strict=True):
                positions[i].token_ids += ids.tolist()
                positions[i].logprobs += islice(values, len(ids))
        return positions

    def _error(self, row: int, outcome: int) -> str:
        position = int(self.rows.num_tokens[row])
        if outcome == NO_TOKEN_LEFT:
            return (
                f"no token is left to sample at position {position}: structured_outputs, allowed_token_ids, bad_words, "
                f"min_tokens and logit_bias together exclude all {self.state.vocab_size}; loosen one of them"
            )
        return (
            f"the model's logits at position {position} are not finite (NaN or infinity); check the weights and dtype"
        )

    def _edit(self, logits: Tensor, rows: Ints, masks: RowMasks | None) -> None:
        state = self.state
        complete: frozenset[int] = frozenset()
        if masks is not None:
            complete = masks.complete
            bound = np.flatnonzero(np.isin(rows, masks.rows))
            bits = masks.bits if len(bound) == len(masks.rows) else masks.bits[np.isin(masks.rows, rows)]
            mask_logits(logits, self._on_device(bound), bits)

        def edits_of(index: Ints) -> list[Edits]:
            return [state.edits[row] for row in rows[index].tolist()]

        allowing = state.using(rows, Uses.ALLOWED)
        if len(allowing):
            kept = self._elements(allowing, [e.allowed_ids for e in edits_of(allowing) if e.allowed_ids is not None])
            values = logits[kept]
            logits.index_fill_(0, self._on_device(allowing), -math.inf)
            logits[kept] = values
        banning = state.using(rows, Uses.BANS)
        if len(banning):
            banned = [self._banned(row, state.edits[row], row in complete) for row in rows[banning].tolist()]
            logits[self._elements(banning, banned)] = -math.inf
        biased = state.using(rows, Uses.BIAS)
        if len(biased):
            values = self._on_device(np.concatenate([e.bias for e in edits_of(biased)]))
            logits[self._elements(biased, [e.bias_ids for e in edits_of(biased)])] += values
        penalized = state.using(rows, Uses.PENALTIES)
        if len(penalized):
            self._penalize(logits, penalized, rows[penalized])

    def _banned(self, row: int, edits: Edits, complete: bool) -> Ints:
        """Ids that must not come next: the last token of a bad word whose others stand at the end, prompt included; and
        end tokens that would be too early, unless the text is complete.
        """
        length = int(self.rows.num_tokens[row])
        history = self.rows.token_ids[row, :length]
        last = [
            word.last
            for word in edits.bad_words
            if len(word.before) <= length and np.array_equal(history[length - len(word.before) :], word.before)
        ]
        banned = np.array(last, np.int64)
        return np.concatenate((banned, edits.end_ids)) if length < edits.min_length and not complete else banned

    def _penalize(self, logits: Tensor, index: Ints, rows: Ints) -> None:
        """Penalties change the logits of tokens in the history alone, all occurrences of one to the same value."""
        state = self.state
        start = np.where(state.repetition_penalty[rows] == 1.0, self.rows.num_prompt_tokens[rows], 0)
        end = self.rows.num_tokens[rows]
        # [P, widest history]; a shorter one goes on with its last token
        columns = np.minimum(start[:, None] + np.arange((end - start).max()), end[:, None] - 1)
        token_ids = self._on_device(self.rows.token_ids[rows[:, None], columns].astype(np.int64))
        elements = (self._on_device(index)[:, None], token_ids)
        count = state.counts.table[self._on_device(state.counts.slot_of_row[rows])[:, None], token_ids]
        repetition, frequency, presence = (
            self._on_device(penalty[rows])[:, None]
            for penalty in (state.repetition_penalty, state.frequency_penalty, state.presence_penalty)
        )
        before = logits[elements]
        repeated = torch.where(before > 0, before / repetition, before * repetition)
        logits[elements] = repeated - frequency * count - presence * (count > 0)

    def _elements(self, index: Ints, token_ids: list[Ints]) -> Elements:
        """The elements `token_ids[i]` of batch row `index[i]`."""
        rows = np.repeat(index, [len(ids) for ids in token_ids])
        return Elements(self._on_device(rows), self._on_device(np.concatenate(token_ids)))

    def _on_device(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)
