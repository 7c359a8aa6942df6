"""The step that the scheduler is putting together. Plain state; decides nothing."""

from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.core.request import Request
from octavo.messages import PositionLogprobs, PromptLogprobs


@dataclass(slots=True)
class Step:
    """What has been given out of one step so far.

    Attributes:
        num_tokens: tokens each scheduled request computes, in batch order.
        new_block_ids: per request that got pages after its admission, the pages per KV group.
        admitted: requests that took a row in this step.
        num_decoding: requests that compute one token, their last.
        prefilling: running requests that have more to compute.
        preempted: whether a running request lost its pages in this step.
    """

    token_budget: int
    num_tokens: dict[Request, int] = field(default_factory=dict)
    new_block_ids: dict[Request, list[list[int]]] = field(default_factory=dict)
    admitted: list[Request] = field(default_factory=list)
    num_decoding: int = 0
    prefilling: list[Request] = field(default_factory=list)
    preempted: bool = False

    def budget_left(self) -> int:
        """Tokens not given out yet."""
        return self.token_budget - sum(self.num_tokens.values())

    def drop(self, request: Request) -> None:
        """Take back what a request got: it was preempted after it had been scheduled."""
        self.preempted = True
        self.num_tokens.pop(request, None)
        self.new_block_ids.pop(request, None)


class Outcome(NamedTuple):
    """What a step brought, by row."""

    token_ids: dict[int, list[int]]
    logprobs: dict[int, list[PositionLogprobs]]
    prompt_logprobs: dict[int, PromptLogprobs]
    now_s: float
