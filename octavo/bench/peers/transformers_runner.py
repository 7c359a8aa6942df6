"""Plain Transformers: greedy `generate` on static batches of as many requests as there are users. Run by its path."""

import time
from typing import Any

import torch
import transformers
from runner import Line, Loaded, Pass, RequestTimes, serve_job, value_of
from transformers import AutoModelForCausalLM, StoppingCriteria

BATCH = 16
"""Requests in a batch when all are sent at once."""


class Clock(StoppingCriteria):
    """Is asked after every token, so it can take the time; never stops."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.times_s.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def load(job: dict[str, Any]) -> Loaded:
    """The model of a Transformers folder."""
    if job["threads"]:
        torch.set_num_threads(job["threads"])
    options = {name: value_of(text) for name, text in job["peer_options"].items()}
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"]), **options)

    def generate(items: list[Line]) -> list[float]:
        """When each token came; prompts are padded on the left, all go on to the longest answer."""
        width, out = max(len(i.prompt_token_ids) for i in items), max(i.output_tokens for i in items)
        ids = torch.zeros(len(items), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, item in enumerate(items):
            ids[row, width - len(item.prompt_token_ids) :] = torch.tensor(item.prompt_token_ids)
            mask[row, width - len(item.prompt_token_ids) :] = 1
        clock = Clock()
        with torch.inference_mode():
            model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=out,
                min_new_tokens=out,
                do_sample=False,
                stopping_criteria=[clock],
            )
        return clock.times_s

    def run(items: list[Line], users: int | None) -> Pass:
        start_s = time.perf_counter()
        times: list[RequestTimes] = []
        for i in range(0, len(items), users or BATCH):
            batch = items[i : i + (users or BATCH)]
            sent_s = start_s if users is None else time.perf_counter()
            tokens_s = generate(batch)
            times += [RequestTimes(sent_s, len(x.prompt_token_ids), tokens_s[: x.output_tokens]) for x in batch]
        return Pass(times, time.perf_counter() - start_s)

    return Loaded(transformers.__version__, run)


if __name__ == "__main__":
    serve_job(load)
