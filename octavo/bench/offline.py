"""Run a workload on an engine in this process and time it. Deals in token ids; no text, no HTTP."""

import time
from dataclasses import replace

from octavo.bench.timing import RequestTimes, summarize
from octavo.bench.workload import WorkItem
from octavo.config import EngineConfig
from octavo.engine.client import InProcessClient
from octavo.messages import EngineRequest, Progress
from octavo.sampling_params import SamplingParams


class OfflineBench:
    """A loaded engine that workloads are run on.

    Args:
        config: the prefix cache is on or off as it says; block and row limits likewise.
    """

    def __init__(self, config: EngineConfig, progress: Progress | None = None) -> None:
        self.client = InProcessClient(config, progress)

    def run(
        self,
        workload: list[WorkItem],
        *,
        sequential: bool = False,
        temperature: float = 0.0,
        top_p: float = 1.0,
        on_progress: "Progress | None" = None,
    ) -> dict[str, object]:
        """Submit everything at once (or, `sequential`, one after the other) and return the figures.

        Raises:
            ClientError: an item does not fit the engine.
            EngineError: a request ended with an error.
        """
        requests = [
            EngineRequest(
                request_id=f"bench-{i}",
                prompt_token_ids=item.prompt_token_ids,
                sampling=SamplingParams(
                    max_tokens=item.output_tokens, ignore_eos=True, temperature=temperature, top_p=top_p
                ),
                seed=i,
            )
            for i, item in enumerate(workload)
        ]
        times: dict[str, RequestTimes] = {}
        start_s = time.perf_counter()
        for batch in [[r] for r in requests] if sequential else [requests]:
            for request in batch:
                times[request.request_id] = RequestTimes(time.perf_counter(), len(request.prompt_token_ids))
                self.client.submit([request])
            self._drain(times, on_progress, len(requests))
        elapsed_s = time.perf_counter() - start_s
        return summarize(list(times.values()), elapsed_s) | self._engine_figures()

    def close(self) -> None:
        """Release the engine."""
        self.client.close()

    def _drain(self, times: dict[str, RequestTimes], on_progress: "Progress | None", total: int) -> None:
        finished = 0
        while self.client.has_unfinished():
            outputs = self.client.step().outputs
            now_s = time.perf_counter()
            for output in outputs:
                times[output.request_id].token_times_s.extend([now_s] * len(output.new_token_ids))
                if output.finish_reason is not None:
                    finished += 1
                    times[output.request_id].error = output.error
            if on_progress is not None:
                on_progress("requests", finished, total)

    def _engine_figures(self) -> dict[str, object]:
        stats = self.client.stats()
        return {
            "kv_blocks": list(self.client.facts.num_blocks),
            "kv_peak_blocks": stats.kv_peak_blocks,
            "kv_waste_percent": round(100 * stats.kv_peak_waste, 3),
            "peak_running": stats.peak_running,
            "preemptions": stats.num_preemptions,
            "prompt_tokens_cached": stats.prompt_tokens_cached,
            "steps": stats.steps,
            "load_s": round(self.client.facts.load_s, 3),
        }


def with_reserved_length(config: EngineConfig) -> EngineConfig:
    """The same engine, but each request holds pages for `max_model_len` tokens from the start, as without paging."""
    return replace(config, scheduler=replace(config.scheduler, reserve_full_length=True))
