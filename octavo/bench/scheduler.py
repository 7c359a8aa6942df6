"""Time what a step costs beside the model: the real scheduler, pages, rows, batch and output processing, with an
executor that makes tokens up. Times are CPU time of this thread, so what else the machine does hardly shows.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from octavo.config import KVGroupSpec, SchedulerConfig
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.scheduler import Scheduler
from octavo.engine.input_processor import Submission
from octavo.engine.output_processor import OutputProcessor
from octavo.messages import EngineRequest, ModelRunnerOutput, SchedulerOutput
from octavo.sampling_params import SamplingParams
from octavo.tokenizer.parts import TokenizerParts
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.worker.input_batch import InputBatch
from octavo.worker.rows import Rows

PHASES = ("schedule", "batch", "update", "output")
BLOCK_SIZE = 16
TOKEN_BUDGET = 1024
PROMPT_TOKENS = 128
MIXED_OUTPUT_TOKENS = 64
"""In the mixed load a 64th of the sequences ends in each step, and as many prompts arrive."""
WARM_UP_STEPS = 2 * MIXED_OUTPUT_TOKENS


def run_scheduler_bench(num_seqs: int, num_steps: int) -> dict[str, object]:
    """Microseconds per running sequence and step, by phase: the median over `num_steps` steps.

    * "decode": `num_seqs` sequences decode and nobody comes or goes.
    * "mixed": as many are running, but sequences end all the time and new prompts take their seats.
    """
    return {"num_seqs": num_seqs, "steps": num_steps} | {
        "decode_us": _Loop(num_seqs, num_steps, mixed=False).run(),
        "mixed_us": _Loop(num_seqs, num_steps, mixed=True).run(),
    }


class _Loop:
    """The steps of an engine without its model."""

    def __init__(self, num_seqs: int, num_steps: int, *, mixed: bool) -> None:
        output_tokens = MIXED_OUTPUT_TOKENS if mixed else WARM_UP_STEPS + num_steps + num_seqs
        max_model_len = PROMPT_TOKENS + output_tokens
        max_blocks = -(-max_model_len // BLOCK_SIZE)
        groups = [KVGroupSpec("full", num_layers=1, num_kv_heads=1, head_dim=8)]
        budget = max(TOKEN_BUDGET, 2 * num_seqs)
        config = SchedulerConfig(max_num_seqs=num_seqs)
        kv = KVCacheManager(groups, [2 * num_seqs * max_blocks], BLOCK_SIZE, enable_prefix_caching=True)
        self._scheduler = Scheduler(config, kv, max_model_len=max_model_len, token_budget=budget)
        self._rows = Rows(num_seqs, max_model_len, len(groups), BLOCK_SIZE)
        self._batch = InputBatch(budget, num_seqs, max_blocks, len(groups), BLOCK_SIZE, torch.device("cpu"))
        self._outputs = OutputProcessor(_byte_tokenizer())
        self._num_steps = num_steps
        self._output_tokens = output_tokens
        self._num_submitted = 0
        for index in range(num_seqs):  # in the mixed load the first ones have answers of every length
            self._submit(1 + index % output_tokens if mixed else output_tokens)

    def run(self) -> dict[str, float]:
        """All steps. A sequence that ends is followed by a new one."""
        per_step: dict[str, list[float]] = {phase: [] for phase in PHASES}
        for step in range(WARM_UP_STEPS + self._num_steps):
            num_running, times_s = self._step()
            if step >= WARM_UP_STEPS:
                for phase, time_s in times_s.items():
                    per_step[phase].append(1e6 * time_s / num_running)
        figures = {phase: round(median(values), 3) for phase, values in per_step.items()}
        return figures | {"total": round(sum(figures.values()), 3)}

    def _step(self) -> tuple[int, dict[str, float]]:
        times_s: dict[str, float] = {}
        with _timed(times_s, "schedule"):
            plan = self._scheduler.schedule()
        with _timed(times_s, "batch"):
            self._rows.update(plan)
            self._batch.gather(plan, self._rows, [])
        result = self._sample(plan)
        with _timed(times_s, "update"):
            news = self._scheduler.update_from_output(plan, result)
            self._scheduler.stats()
        with _timed(times_s, "output"):
            self._outputs.process(news)
        for output in news:
            if output.finish_reason is not None:
                self._submit(self._output_tokens)
        return len(plan.rows), times_s

    def _sample(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """What a model would have said: letters, by row and step."""
        rows = np.array(plan.rows)[plan.samples]
        token_ids = ord("a") + (rows + plan.step) % 26
        self._rows.append_tokens(rows, token_ids)
        return ModelRunnerOutput(
            step=plan.step,
            rows=rows.tolist(),
            token_ids=[[token_id] for token_id in token_ids.tolist()],
            logprobs=[None] * len(rows),
        )

    def _submit(self, output_tokens: int) -> None:
        index = self._num_submitted
        self._num_submitted += 1
        prompt = [ord("a") + (index >> 4 * place) % 16 for place in range(6)] * PROMPT_TOKENS
        params = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
        request = EngineRequest(request_id=str(index), prompt_token_ids=prompt[:PROMPT_TOKENS], sampling=params)
        self._outputs.add(
            Submission(
                request_id=request.request_id,
                prompt=None,
                prompt_token_ids=request.prompt_token_ids,
                params=params,
                seed=0,
                arrival_time_s=0.0,
                sequences=[request],
            )
        )
        self._scheduler.add_request(request)


@contextmanager
def _timed(times_s: dict[str, float], phase: str) -> Iterator[None]:
    start_s = time.thread_time()
    yield
    times_s[phase] = time.thread_time() - start_s


def _byte_tokenizer() -> Tokenizer:
    """Byte-level, one token per byte, no merges."""
    backend = Backend(
        models.BPE({letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(TokenizerParts(backend))
