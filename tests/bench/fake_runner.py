"""A runner without an engine: every token takes no time. What the job's "dtype" says decides how it fails."""

import sys

from runner import Line, Loaded, Pass, RequestTimes, serve_job


def load(job):
    print("a library prints this")  # must not reach the parent
    if job["dtype"] == "broken":
        sys.exit("no such dtype")
    if job["dtype"] == "slow":
        sys.stdin.read()

    def run(items: list[Line], users: int | None) -> Pass:
        tokens_s = [[item.at_s + n for n in range(item.output_tokens)] for item in items]
        prompts = [len(item.prompt_token_ids) for item in items]
        return Pass([RequestTimes(0.0, *both) for both in zip(prompts, tokens_s, strict=True)], 2.0)

    return Loaded("1.2", run)


if __name__ == "__main__":
    serve_job(load)
