"""Time what a step costs beside the model: the real scheduler, model runner, sampler and output processing, around a
model that makes logits up. Times are CPU time of this thread, so what else the machine does hardly shows.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from octavo.attention.batch import ForwardBatch
from octavo.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    KVGroupSpec,
    ModelConfig,
    ModelSpec,
    SchedulerConfig,
)
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.scheduler import Scheduler
from octavo.engine.input_processor import Submission
from octavo.engine.output_processor import OutputProcessor
from octavo.messages import EngineRequest
from octavo.ops.dispatch import use_providers
from octavo.platforms.registry import select_platform
from octavo.sampling_params import SamplingParams
from octavo.tokenizer.parts import TokenizerParts
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.worker.model_runner import ModelRunner

PHASES = ("schedule", "batch", "sample", "update", "output")
VOCAB_SIZE = 128
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

    The phases: "schedule" makes the plan; "batch" brings rows and pages up to date and gathers the forward pass;
    "sample" gathers parameters, chooses among 128 tokens and writes the result; "update" takes it into the scheduler;
    "output" makes news of it, as the caller's side of the engine does (in a server that is another process).
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
        num_blocks = 2 * num_seqs * -(-max_model_len // BLOCK_SIZE)
        model, config = _Model(num_seqs), _config(num_seqs, max_model_len)
        kv = KVCacheManager(model.kv_groups, [num_blocks], BLOCK_SIZE, enable_prefix_caching=True)
        self._scheduler = Scheduler(config.scheduler, kv, max_model_len=max_model_len, token_budget=config.token_budget)
        use_providers(select_platform("cpu").providers)
        self._runner = ModelRunner(model, config, [num_blocks], torch.float32, torch.device("cpu"))
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
            self._runner.execute(plan)
        with _timed(times_s, "sample"):
            result = self._runner.sample(plan)
        with _timed(times_s, "update"):
            news = self._scheduler.update_from_output(plan, result)
            self._scheduler.stats()
        with _timed(times_s, "output"):
            self._outputs.process(news)
        for output in news:
            if output.finish_reason is not None:
                self._submit(self._output_tokens)
        return len(plan.rows), times_s

    def _submit(self, output_tokens: int) -> None:
        index = self._num_submitted
        self._num_submitted += 1
        prompt = [ord("a") + (index >> 4 * place) % 16 for place in range(6)] * PROMPT_TOKENS
        params = SamplingParams(max_tokens=output_tokens, ignore_eos=True, temperature=0.0)
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


class _Model:
    """Says letters, a different one in each place of the batch, and computes nothing."""

    vocab_size = VOCAB_SIZE

    def __init__(self, num_seqs: int) -> None:
        self.kv_groups = [KVGroupSpec("full", num_layers=1, num_kv_heads=1, head_dim=8)]
        self._letters = torch.zeros((num_seqs, VOCAB_SIZE))
        for i, scores in enumerate(self._letters):
            scores[ord("a") + i % 26] = 1.0

    def forward(self, batch: ForwardBatch) -> Tensor:
        return batch.positions[:, None]

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        return self._letters[: len(hidden)]


def _config(num_seqs: int, max_model_len: int) -> EngineConfig:
    token_budget = max(TOKEN_BUDGET, 2 * num_seqs)
    return EngineConfig(
        model=ModelConfig(),
        cache=CacheConfig(block_size=BLOCK_SIZE),
        scheduler=SchedulerConfig(max_num_seqs=num_seqs, max_num_batched_tokens=token_budget),
        device=DeviceConfig(device="cpu"),
        spec=ModelSpec("letters", "", "dummy", "", {}, max_model_len, VOCAB_SIZE, (), {}, "", "float32"),
        dtype="float32",
        max_model_len=max_model_len,
        served_model_name="letters",
    )


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
