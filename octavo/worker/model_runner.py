"""Run one step of a model: bring rows and pages up to date, compute, sample. Knows any `CausalLM` by its interface; no
requests, no scheduling.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.attention.batch import ForwardBatch
from octavo.config import EngineConfig, KVGroupSpec
from octavo.errors import EngineDeadError, EngineError
from octavo.logging import get_logger
from octavo.messages import ModelRunnerOutput, PositionLogprobs, PromptLogprobs, SchedulerOutput, TokenMasks
from octavo.models.base import CausalLM
from octavo.ops.rank_tokens import rank_tokens
from octavo.ops.sample import NO_TOKEN_LEFT
from octavo.worker.forward import Forward, planned_forward
from octavo.worker.input_batch import InputBatch, probe_batch
from octavo.worker.kv_pages import KVPages
from octavo.worker.logprobs import to_messages
from octavo.worker.rows import Rows
from octavo.worker.sampler import NOT_FINITE_MESSAGE, RowMasks, Sampled, Sampler
from octavo.worker.sampling_state import Uses

logger = get_logger(__name__)

MAX_LOGITS = 1 << 24
"""Most logits that exist at once (64 MiB): more rows are sampled, and prompts scored, one part after the other."""


class Model(Protocol):
    """What a step needs of a model."""

    kv_groups: list[KVGroupSpec]
    vocab_size: int

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Final hidden states. [T, hidden]"""

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        """[S, hidden] -> [S, vocab] float32, written to `out`."""


class ModelRunner:
    """Executes plans on one device.

    Args:
        num_blocks: pages per KV group.
    """

    def __init__(
        self, model: Model, config: EngineConfig, num_blocks: Sequence[int], kv_dtype: torch.dtype, device: torch.device
    ) -> None:
        block_size, max_rows = config.cache.block_size, config.scheduler.max_num_seqs
        num_groups = len(model.kv_groups)
        self.model = model
        self.device = device
        self.rows = Rows(max_rows, config.max_model_len, num_groups, block_size)
        self.pages = KVPages(model.kv_groups, num_blocks, block_size, kv_dtype, device)
        self.sampler = Sampler(self.rows, model.vocab_size, config.model.logprobs_mode, device)
        max_blocks = -(-config.max_model_len // block_size)
        self._forward: Forward = model.forward
        if isinstance(model, CausalLM) and not config.device.enforce_eager:
            self._forward = planned_forward(model, self.pages.pools, config.token_budget)
        self._batch = InputBatch(config.token_budget, max_rows, max_blocks, num_groups, block_size, device)
        # One place for the logits of all steps: fresh memory costs more to touch than logits to write.
        num_scored = max(1, MAX_LOGITS // model.vocab_size)
        self._scores = torch.empty((num_scored, model.vocab_size), dtype=torch.float32, device=device)
        self._hidden: Tensor | None = None
        self._errors: dict[int, str] = {}
        self._fault: Exception | None = None

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> None:
        """Start the forward pass of `plan`; `sample` of the same plan comes next.

        What goes wrong with one row is in the errors of the output; its neighbours' bits are as without it.
        """
        self._errors = {}
        self._update_rows(plan)
        self.pages.zero(plan.zero_block_ids)
        self.pages.copy(plan.block_copies)
        self._hidden, self._fault = None, None
        if not plan.rows:
            return
        try:
            self._hidden = self._compute(plan)
        except EngineDeadError:
            raise
        except Exception as err:  # one of the rows may be at fault: `sample` computes each alone
            if len(plan.rows) == 1:
                raise
            self._fault = err

    @torch.inference_mode()
    def sample(self, plan: SchedulerOutput, masks: TokenMasks | None = None) -> ModelRunnerOutput:
        """Finish `plan`: sample the rows that have reached their last known token, and append what they sampled."""
        output = ModelRunnerOutput(step=plan.step, errors=self._errors)
        bound = None if masks is None else RowMasks.of(masks, self.device)
        if self._fault is not None:
            self._finish_apart(plan, bound, output, self._fault)
        elif self._hidden is not None:
            self._finish(plan, bound, output)
        return output

    @torch.inference_mode()
    def probe(self) -> None:
        """Compute a token that is nobody's and changes no page. Raises if even that fails."""
        self._hidden = self._forward(probe_batch(self.pages.pools, self.device))
        self._logits(np.zeros(1, np.int64))

    def _compute(self, plan: SchedulerOutput) -> Tensor:
        return self._forward(self._batch.gather(plan, self.rows, self.pages.pools))

    def _finish_apart(
        self, plan: SchedulerOutput, masks: RowMasks | None, output: ModelRunnerOutput, fault: Exception
    ) -> None:
        """Compute and sample row by row, to the same bits; raise `fault` if not one row can be."""
        logger.error("a step of %d rows failed; each is computed alone", len(plan.rows), exc_info=fault)
        for i, row in enumerate(plan.rows):
            alone = SchedulerOutput(
                step=plan.step,
                rows=[row],
                num_tokens=[plan.num_tokens[i]],
                num_computed_tokens=[plan.num_computed_tokens[i]],
                samples=[plan.samples[i]],
            )
            try:
                self._hidden = self._compute(alone)
                self._finish(alone, masks, output)
            except EngineDeadError:
                raise
            except Exception as err:
                output.errors[row] = _told(err)
        if all(row in output.errors for row in plan.rows):
            raise fault

    def _finish(self, plan: SchedulerOutput, masks: RowMasks | None, output: ModelRunnerOutput) -> None:
        rows, ends = self._batch.rows, self._batch.ends
        self._score_prompts(plan, rows, ends, output)
        sampling = np.flatnonzero(plan.samples)
        part_size = len(self._scores)
        for start in range(0, len(sampling), part_size):
            part = sampling[start : start + part_size]
            self._sample(rows[part], ends[part] - 1, masks, output)

    def _update_rows(self, plan: SchedulerOutput) -> None:
        self.rows.update(plan)
        for row in plan.freed_rows:
            self.sampler.free(row)
        for new in plan.new_rows:
            try:
                self.sampler.add(new)
            except Exception as err:  # its parameters: nobody else has to do with them
                self.sampler.free(new.row)
                self._errors[new.row] = _told(err)

    def _sample(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int64], masks: RowMasks | None, output: ModelRunnerOutput
    ) -> None:
        """Sample `rows`, whose last tokens are at `tokens` of the batch."""
        try:
            sampled = self.sampler.sample(self._logits(tokens), rows, masks)
        except EngineDeadError:
            raise
        except Exception as err:
            if len(rows) > 1:  # one of them is at fault; a row has the same bits alone
                for row, token in zip(rows, tokens, strict=True):
                    self._sample(np.array([row]), np.array([token]), masks, output)
                return
            sampled = Sampled(np.array([-1]), {}, {0: _told(err)})
        good = sampled.token_ids >= 0
        self.rows.append_tokens(rows[good], sampled.token_ids[good])
        output.rows += rows.tolist()
        token_ids: list[list[int]] = sampled.token_ids[:, None].tolist()
        logprobs: list[list[PositionLogprobs] | None] = [None] * len(rows)
        for i, position in sampled.logprobs.items():
            logprobs[i] = [position]
        for i, message in sampled.errors.items():
            token_ids[i] = []
            output.errors[int(rows[i])] = message
            if sampled.token_ids[i] == NO_TOKEN_LEFT:
                output.refused.add(int(rows[i]))
        output.token_ids += token_ids
        output.logprobs += logprobs

    def _score_prompts(
        self, plan: SchedulerOutput, rows: NDArray[np.int64], ends: NDArray[np.int64], output: ModelRunnerOutput
    ) -> None:
        """Log probabilities of the prompt tokens that follow the positions of this step, for rows that asked."""
        for i in self.sampler.state.using(rows, Uses.PROMPT_LOGPROBS).tolist():
            row, first = plan.rows[i], plan.num_computed_tokens[i]
            last = min(first + plan.num_tokens[i], int(self.rows.num_prompt_tokens[row]) - 1)
            if first >= last:
                continue
            try:
                output.prompt_logprobs[row] = self._score_prompt(row, first, last, int(ends[i]) - plan.num_tokens[i])
            except EngineDeadError:
                raise
            except Exception as err:
                output.errors[row] = _told(err)

    def _score_prompt(self, row: int, first: int, last: int, start: int) -> PromptLogprobs:
        """Log probabilities of the tokens of a row that follow the positions `first` .. `last` - 1; the one at `first`
        is at `start` of the batch.

        Raises:
            EngineError: they are not finite.
        """
        scored = PromptLogprobs(first + 1, [])
        num_top = int(self.sampler.state.num_prompt_logprobs[row])
        part_size = len(self._scores)
        for begin in range(first, last, part_size):
            positions = np.arange(begin, min(begin + part_size, last))
            following = torch.from_numpy(self.rows.token_ids[row, positions + 1].astype(np.int64)).to(self.device)
            ranked = rank_tokens(
                self._logits(positions + start - first),
                following,
                num_top,
                normalized=self.sampler.mode.normalized,
            )
            if ranked.values.isnan().any():
                raise EngineError(NOT_FINITE_MESSAGE.format(where=f"up to position {positions[-1] + 1}"))
            scored.positions += to_messages(ranked, [num_top] * len(positions))
        return scored

    def _logits(self, tokens: NDArray[np.int64]) -> Tensor:
        """Logits after some tokens of the batch, valid until the next call. [N] -> [N, vocab]"""
        assert self._hidden is not None
        hidden = self._hidden
        if len(tokens) < len(hidden):  # else they are all of them: those asked for are different and in order
            hidden = hidden[torch.from_numpy(tokens).to(self.device)]
        return self.model.logits(hidden, self._scores[: len(tokens)])


def _told(err: Exception) -> str:
    """What the request is told whose row failed; a fault of ours is logged with its place."""
    if isinstance(err, EngineError):
        return str(err)
    logger.error("a row failed; the others go on", exc_info=err)
    return f"the engine failed while it computed this request: {type(err).__name__}: {err}"
