"""What the server needs of an engine. `octavo.engine.async_llm.AsyncLLM` is one; tests bring a scripted one."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from octavo.config import EngineConfig
from octavo.engine.crash_dump import RequestShape
from octavo.engine.protocol import EngineFacts
from octavo.messages import PageMap, SchedulerStats
from octavo.outputs import RequestOutput
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.tokenizer.tokenizer import Tokenizer


class Engine(Protocol):
    """An engine that is loaded and runs in the background.

    Attributes:
        config: resolved; `cache.num_blocks` is set.
        facts: what it turned out to be; set, since it is loaded.
        tokenizer: of the model.
        on_step: called with the number of tokens of each step, if set.
    """

    config: EngineConfig
    facts: EngineFacts | None
    tokenizer: Tokenizer
    on_step: Callable[[int], None] | None

    def check_health(self) -> None:
        """Return at once if the engine runs and its steps make progress.

        Raises:
            EngineDeadError: it is gone or hung; says why.
        """
        ...

    def generate_all(
        self,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
    ) -> AsyncGenerator[tuple[int, RequestOutput]]:
        """Submit the prompts of one request, all or none, and yield (place of the prompt, output) for all news.

        Every yielded `RequestOutput` is cumulative: `text`, `token_ids` and `logprobs` of a sample hold everything so
        far (the lists may be the same growing objects, so nothing is copied per token). `outputs` holds the samples
        that changed. The last one of a prompt has `finished` set. Closing the iterator aborts what is left and frees
        its blocks.

        Raises:
            ClientError: at the first step, when a prompt can never run or the queue is full (OverloadedError).
            UnanswerableError: a prompt turned out to be wrong while it was answered.
            EngineError: the engine failed on a prompt; EngineDeadError when it is gone.
        """
        ...

    def beam_search(
        self,
        prompts: Sequence[list[int]],
        params: BeamSearchParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
    ) -> AsyncGenerator[tuple[int, RequestOutput]]:
        """Search for the best answers; one output per prompt, when all are done, whose samples are the beams. Otherwise
        as `generate_all`.
        """
        ...

    async def page_maps(self) -> list[PageMap]:
        """What the pages of each KV group hold; takes until the step is over that runs now.

        Raises:
            EngineDeadError: the engine is gone.
        """
        ...

    def recent_requests(self) -> list[RequestShape]:
        """The open requests and the last that have ended, by arrival, without their content."""
        ...

    def stats(self) -> SchedulerStats:
        """State after the latest step, without asking the engine process."""
        ...
