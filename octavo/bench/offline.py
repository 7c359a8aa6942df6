"""Run a workload on an engine in this process and time it. Deals in token ids; no text, no HTTP."""

from collections.abc import Sequence
from dataclasses import replace

from octavo.bench.peers.runner import Item, Output, Pass, run_steps
from octavo.bench.timing import summarize
from octavo.bench.workload import WorkItem
from octavo.config import EngineConfig
from octavo.engine.client import InProcessClient
from octavo.messages import EngineRequest, Progress
from octavo.sampling_params import SamplingParams


class _Stepper:
    """The client as `run_steps` wants it; a request is known by its index."""

    def __init__(self, client: InProcessClient, temperature: float, top_p: float) -> None:
        self.client = client
        self.temperature = temperature
        self.top_p = top_p

    def add(self, index: int, item: Item) -> None:
        sampling = SamplingParams(
            max_tokens=item.output_tokens, ignore_eos=True, temperature=self.temperature, top_p=self.top_p
        )
        self.client.submit(
            [
                EngineRequest(
                    request_id=str(index), prompt_token_ids=item.prompt_token_ids, sampling=sampling, seed=index
                )
            ]
        )

    def step(self) -> list[Output]:
        return [
            Output(int(o.request_id), len(o.new_token_ids), o.finish_reason is not None, o.error)
            for o in self.client.step().outputs
        ]


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
        users: int | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        on_progress: "Progress | None" = None,
    ) -> dict[str, object]:
        """Send each item when it arrives and, of at most `users`, one is free; return the figures.

        Raises:
            ClientError: an item does not fit the engine.
        """
        times, elapsed_s = self.send(
            workload, users=users, temperature=temperature, top_p=top_p, on_progress=on_progress
        )
        return summarize(times, elapsed_s) | self._engine_figures()

    def send(
        self,
        items: Sequence[Item],
        *,
        users: int | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        on_progress: "Progress | None" = None,
    ) -> Pass:
        """As `run`, but return when everything happened."""
        stepper = _Stepper(self.client, temperature, top_p)
        report = on_progress or (lambda stage, done, total: None)
        return run_steps(stepper, items, users, lambda finished: report("requests", finished, len(items)))

    def close(self) -> None:
        """Release the engine."""
        self.client.close()

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
