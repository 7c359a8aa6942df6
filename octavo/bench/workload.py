"""What to send: workload files and random ones. Deals in token ids; knows no engine."""

import random
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from octavo.errors import ConfigError


class WorkItem(NamedTuple):
    """One request: greedy, exactly `output_tokens` tokens. It arrives `at_s` seconds after the start."""

    prompt_token_ids: list[int]
    output_tokens: int
    at_s: float = 0.0


class _Line(msgspec.Struct):
    prompt: list[int]
    out: int
    at: Annotated[float, msgspec.Meta(ge=0)] = 0.0


def read_workload(path: str) -> list[WorkItem]:
    """Read a file of `{"prompt": [token ids], "out": n}` lines, in the order of `"at"`, seconds, where lines have it.

    Raises:
        ConfigError: no such file, or a line of another form; names the line.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as err:
        raise ConfigError(f"workload {path} cannot be read: {err.strerror}") from None
    items = []
    for number, line in enumerate(lines, 1):
        try:
            parsed = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError as err:
            raise ConfigError(f"workload {path} line {number}: {err}") from None
        items.append(WorkItem(parsed.prompt, parsed.out, parsed.at))
    if not items:
        raise ConfigError(f"workload {path} is empty")
    return sorted(items, key=lambda item: item.at_s)


def random_workload(requests: int, input_tokens: int, output_tokens: int, vocab_size: int, seed: int) -> list[WorkItem]:
    """`requests` prompts of `input_tokens` uniformly random ids, the same for the same seed."""
    rng = random.Random(seed)
    return [WorkItem([rng.randrange(vocab_size) for _ in range(input_tokens)], output_tokens) for _ in range(requests)]
