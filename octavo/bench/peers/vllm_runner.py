"""vLLM's engine, stepped in this process's main thread. Run by its path, with an interpreter that has vLLM."""

from typing import Any

import vllm
from runner import Item, Loaded, Output, run_steps, serve_job, value_of


class Engine:
    """See `runner.Stepper`."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.seen: dict[str, int] = {}
        self.passes = 0

    def add(self, index: int, item: Item) -> None:
        sampling = vllm.SamplingParams(
            temperature=0.0, max_tokens=item.output_tokens, ignore_eos=True, detokenize=False
        )
        self.seen[str(index)] = 0
        self.engine.add_request(str(index), {"prompt_token_ids": item.prompt_token_ids}, sampling)

    def step(self) -> list[Output]:
        outputs = []
        for output in self.engine.step():
            name, total = output.request_id, len(output.outputs[0].token_ids)
            outputs.append(Output(int(name), total - self.seen[name], output.finished))
            self.seen[name] = total
        return outputs


def load(job: dict[str, Any]) -> Loaded:
    """An engine on a Transformers folder, with the options of vLLM but for those that the comparison fixes."""
    llm = vllm.LLM(
        model=job["model"],
        dtype=job["dtype"],
        max_model_len=job["max_model_len"],
        max_num_seqs=job["max_seqs"],
        enable_prefix_caching=job["prefix_caching"],
        **{name: value_of(text) for name, text in job["peer_options"].items()},
    )
    engine = Engine(llm.llm_engine)
    return Loaded(vllm.__version__, lambda items, users: run_steps(engine, items, users))


if __name__ == "__main__":
    serve_job(load)
