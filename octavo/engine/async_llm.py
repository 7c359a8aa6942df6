"""The engine as an asyncio server uses it: many requests at once, each an async iterator. Text and ids on this side,
the model in a process of its own; knows no HTTP.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import islice
from types import TracebackType

import msgspec

from octavo import envs, limits
from octavo.config import EngineConfig
from octavo.engine.beam_search import BeamSearch
from octavo.engine.child import EngineChild
from octavo.engine.client import ProcessClient
from octavo.engine.crash_dump import CrashRecorder, RequestShape, shape_of
from octavo.engine.input_processor import InputProcessor, Prompt, Submission
from octavo.engine.output_processor import OutputProcessor, RequestState
from octavo.engine.protocol import Beat, EngineFacts, News, Refused, Reply, refusal
from octavo.engine.stats import StatsLogger, counters, total
from octavo.engine.watchdog import Watchdog
from octavo.errors import ClientError, EngineDeadError, OctavoError, OverloadedError
from octavo.logging import get_logger
from octavo.messages import EngineOutput, PageMap, Progress, SchedulerStats
from octavo.outputs import RequestOutput
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.tokenizer.tokenizer import load_tokenizer

logger = get_logger(__name__)

WATCH_INTERVAL_S = 0.1

GRAMMAR_TIMEOUT_S = 10.0
"""A grammar that takes longer to check is refused. The limits of the compiler keep it from going on for long."""

NUM_RECENT = 64
"""How many requests that have ended are remembered."""

OUTPUTS_PER_TURN = 64
"""News of this many sequences are processed before the event loop gets a turn for its other work."""


class AsyncLLM:
    """An engine in a process of its own. All methods belong to one event loop; `start` comes first.

    ```python
    async with AsyncLLM(make_config(model="smollm2-135m-instruct")) as engine:
        async for output in engine.generate("Hello", SamplingParams(), "request-1"):
            print(output.outputs[0].text)
    ```

    Args:
        config: from `engine.resolve.make_config`.
        watchdog_timeout_s: without a step for this long while work is pending, the engine counts as hung, even if it
            computes.
        log_stats: write a statistics line while busy.
        child: a process started earlier, to save time.
        crash_dump_folder: where to write down the last minutes when the engine is lost; None: nowhere.

    Attributes:
        config: after `start` with `cache.num_blocks` and the final `max_model_len`.
        tokenizer: of the model.
        facts: what the loaded engine is, after `start`.
        on_step: called with the number of tokens of each step, if set.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        watchdog_timeout_s: float = 300.0,
        log_stats: bool = True,
        child: EngineChild | None = None,
        crash_dump_folder: str | None = None,
    ) -> None:
        self.config = config
        self.facts: EngineFacts | None = None
        self.on_step: Callable[[int], None] | None = None
        self._recorder = CrashRecorder(crash_dump_folder) if crash_dump_folder else None
        self._client = ProcessClient(config, child)
        try:
            self.tokenizer = load_tokenizer(config.spec.tokenizer_path)  # a child loads the model meanwhile
        except BaseException:
            self._client.close()
            raise
        self._watchdog = Watchdog(watchdog_timeout_s)
        self._watchdog_timeout_s = watchdog_timeout_s
        self._stats = SchedulerStats()
        self._earlier = SchedulerStats()  # counters of processes that were lost
        self._stats_logger = StatsLogger(envs.LOG_STATS_INTERVAL.get()) if log_stats else None
        self._outputs = OutputProcessor(self.tokenizer)
        self._inputs: InputProcessor | None = None
        self._recent: deque[RequestShape] = deque(maxlen=NUM_RECENT)
        self._replies: dict[int, asyncio.Future[bool | list[PageMap]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: EngineDeadError | None = None
        self._lost = asyncio.Event()
        self._draining = False
        self._num_searches = 0

    async def start(self, progress: Progress | None = None) -> EngineFacts:
        """Start the process and load the model.

        Raises:
            ConfigError, ModelError: it cannot be loaded. EngineDeadError: the process ended.
        """
        try:
            facts = await self._client.start(progress)
        except BaseException:
            self.close()
            raise
        cache = replace(self.config.cache, num_blocks=facts.num_blocks)
        self.config = replace(self.config, cache=cache, max_model_len=facts.max_model_len)
        self._inputs = InputProcessor(self.config, self.tokenizer, facts.max_request_tokens)
        self.facts = facts
        self._attend()
        return facts

    async def restart(self, progress: Progress | None = None) -> None:
        """Start a new process in place of one that was lost. It has the same sizes, counters and the numbers of
        submissions go on; cached prompt beginnings are gone.

        Raises:
            ConfigError, ModelError, EngineDeadError: it cannot be started; another try may follow.
        """
        assert self._failure is not None and self.facts is not None
        self._client.close()
        self._client = ProcessClient(self.config)
        try:
            facts = await self._client.start(progress)
            if msgspec.structs.replace(facts, load_s=self.facts.load_s) != self.facts:
                raise EngineDeadError(f"the engine came back as another one: {facts} instead of {self.facts}")
        except BaseException:
            self._client.close()
            raise
        self._failure = None
        self._lost.clear()
        self._attend()

    async def lost(self) -> EngineDeadError:
        """Wait until the engine is gone or hung; every open request has ended then. Returns why."""
        await self._lost.wait()
        assert self._failure is not None
        return self._failure

    async def __aenter__(self) -> "AsyncLLM":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
    ) -> AsyncGenerator[RequestOutput]:
        """Submit one prompt and yield what is new, each time it is; otherwise as `generate_all`."""
        stream = self.generate_all(
            [prompt], params, request_id, priority=priority, cache_salt=cache_salt, tenant=tenant
        )
        async with aclosing(stream):
            async for _, output in stream:
                yield output

    async def generate_all(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
    ) -> AsyncGenerator[tuple[int, RequestOutput]]:
        """Submit the prompts of one request, all or none, and yield (place of the prompt, what is new) each time there
        is something; a slow reader gets several steps at once.

        Every output is cumulative: `text`, `token_ids` and `logprobs` of a sample hold everything so far. The lists are
        the same growing objects each time, so a step costs its new tokens only. `outputs` holds the samples that have
        changed; the last output of a prompt has `finished` set. Closing the iterator aborts what is left and frees its
        pages.

        Raises:
            ClientError: a prompt is wrong or can never run, or the queue is full (OverloadedError).
            UnanswerableError: a prompt turned out to be wrong while it was answered.
            EngineError: the engine failed on a prompt; EngineDeadError when it is gone.
        """
        ids = [request_id] if len(prompts) == 1 else [f"{request_id}-{i}" for i in range(len(prompts))]
        awake, changed = asyncio.Event(), dict[int, None]()

        def on_news(place: int) -> None:
            changed[place] = None
            awake.set()

        await self._check_grammar(params, len(prompts))
        states: list[RequestState] = []
        try:
            for place, prompt in enumerate(prompts):
                states.append(
                    self._open(prompt, params, ids[place], priority, cache_salt, tenant, partial(on_news, place))
                )
            self._client.submit([sequence for state in states for sequence in state.submission.sequences])
            num_open = len(states)
            while num_open:
                await awake.wait()
                awake.clear()
                while changed:
                    state = states[place := next(iter(changed))]
                    del changed[place]
                    output = state.take()
                    if output.finished:
                        num_open -= 1
                        if state.error is not None:
                            raise state.error
                    yield place, output
        finally:
            self._abort([state.submission.request_id for state in states if not state.finished])
            for state in states:
                shape = shape_of(state)
                self._recent.append(shape)
                if self._recorder is not None:
                    self._recorder.end(shape)

    async def beam_search(
        self,
        prompts: Sequence[Prompt],
        params: BeamSearchParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
    ) -> AsyncGenerator[tuple[int, RequestOutput]]:
        """Search the best answers to the prompts of one request, in step, and yield (place of the prompt, output) of
        each when all are done. The beams are the samples. Closing the iterator ends the search; errors as above.
        """
        inputs, checked = self._check_open(), SamplingParams(max_tokens=params.max_tokens)
        requests = [
            inputs.process(
                prompt, checked, f"{request_id}-{i}", priority=priority, cache_salt=cache_salt, tenant=tenant
            )
            for i, prompt in enumerate(prompts)
        ]
        searches = [BeamSearch(request, params, self.config.spec.vocab_size) for request in requests]
        awake, states = asyncio.Event(), list[RequestState]()
        self._num_searches += 1
        try:
            while work := [(search, made) for search in searches if (made := search.submissions())]:
                states = [self._add(submission, awake.set) for _, made in work for submission in made]
                self._client.submit([sequence for state in states for sequence in state.submission.sequences])
                while not all(state.finished for state in states):
                    await awake.wait()
                    awake.clear()
                outcomes = iter(states)
                for search, made in work:
                    self._abort_in_core(search.advance(list(islice(outcomes, len(made)))))
        finally:
            self._num_searches -= 1
            self._abort([state.submission.request_id for state in states if not state.finished])
            self._abort_in_core([engine_id for search in searches for engine_id in search.release()])
        for place, search in enumerate(searches):
            yield place, search.output(self.tokenizer)

    async def abort(self, request_ids: Iterable[str]) -> None:
        """End requests early; each ends with finish reason "abort". Ids that are not open are ignored."""
        self._abort(request_ids)

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prompt beginnings; False if pages in use kept some of them."""
        self._check_started()
        return bool(await self._reply(self._client.reset_prefix_cache()))

    async def page_maps(self) -> list[PageMap]:
        """What the pages of each KV group hold. The engine answers between two steps."""
        self._check_started()
        maps = await self._reply(self._client.map_pages())
        assert isinstance(maps, list)
        return maps

    def recent_requests(self) -> list[RequestShape]:
        """The open requests and the last that have ended, by arrival."""
        still_open = [shape_of(state) for state in self._outputs.open_requests()]
        return sorted([*self._recent, *still_open], key=lambda shape: shape.arrival_s)

    @property
    def is_alive(self) -> bool:
        """False before `start`, once the engine process is gone, and while the watchdog counts it as hung."""
        try:
            self.check_health()
        except OctavoError:
            return False
        return True

    def check_health(self) -> None:
        """Return if requests are taken and answered; sends nothing.

        Raises:
            EngineDeadError: the engine is not started, gone, or hung.
        """
        self._check_started()

    def stats(self) -> SchedulerStats:
        """State after the latest step, without asking the engine process; counters go on after a restart."""
        return total(self._earlier, self._stats)

    async def drain(self, timeout_s: float) -> bool:
        """Take no new requests and wait for the open ones; those left after `timeout_s` are aborted.

        Returns:
            Whether all of them finished in time.
        """
        self._draining = True
        deadline_s = time.monotonic() + timeout_s
        while (len(self._outputs) or self._num_searches) and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        in_time = not len(self._outputs) and not self._num_searches
        self._abort(self._outputs.request_ids())
        return in_time

    def close(self) -> None:
        """Stop the engine and all its processes; open requests end with EngineDeadError. May be called twice."""
        self._fail(EngineDeadError("the engine is closed"))
        for task in self._tasks:
            if not task.get_loop().is_closed():
                task.cancel()
        self._client.close()

    async def _reply(self, call_id: int) -> bool | list[PageMap]:
        reply: asyncio.Future[bool | list[PageMap]] = asyncio.get_running_loop().create_future()
        self._replies[call_id] = reply
        return await reply

    def _check_started(self) -> InputProcessor:
        if self._failure is not None:
            raise EngineDeadError(str(self._failure))
        if self._inputs is None:
            raise EngineDeadError("the engine is still loading")
        return self._inputs

    async def _check_grammar(self, params: SamplingParams, num_prompts: int) -> None:
        """Have a new grammar checked in a thread, so that others need not wait; `_open` then knows it."""
        wanted = params.structured_outputs if isinstance(params, SamplingParams) else None
        if wanted is None:
            return
        try:
            check = asyncio.to_thread(self._check_started().grammars.check, wanted)
            grammar = await asyncio.wait_for(check, GRAMMAR_TIMEOUT_S)
        except TimeoutError:
            raise ClientError(
                f"the grammar could not be checked within {GRAMMAR_TIMEOUT_S:g} s; simplify it",
                param="structured_outputs",
            ) from None
        limits.GRAMMAR_BYTES_OF_CHOICES.check("structured_outputs", num_prompts * params.n * len(grammar))

    def _open(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        priority: int,
        cache_salt: str | None,
        tenant: str,
        on_news: Callable[[], None],
    ) -> RequestState:
        submission = self._check_open().process(
            prompt, params, request_id, priority=priority, cache_salt=cache_salt, tenant=tenant
        )
        return self._add(submission, on_news)

    def _check_open(self) -> InputProcessor:
        """For a new request."""
        inputs = self._check_started()
        if self._draining:
            raise OverloadedError("the engine is shutting down and takes no new requests")
        return inputs

    def _add(self, submission: Submission, on_news: Callable[[], None]) -> RequestState:
        self._check_started()
        if not len(self._outputs):
            self._watchdog.stepped()
        return self._outputs.add(submission, on_news)

    def _abort(self, request_ids: Iterable[str]) -> None:
        self._abort_in_core(self._outputs.abort(request_ids))

    def _abort_in_core(self, engine_ids: list[str]) -> None:
        if engine_ids and self._failure is None:
            self._client.abort(engine_ids)

    def _attend(self) -> None:
        """Listen to a process that has started, and watch it."""
        self._watchdog = Watchdog(self._watchdog_timeout_s)
        self._tasks = [
            asyncio.create_task(self._read(), name="engine-reader"),
            asyncio.create_task(self._watch(), name="engine-watchdog"),
        ]

    async def _read(self) -> None:
        """Pass on what the process says, until it has nothing more to say."""
        try:
            while True:
                message = await self._client.receive()
                self._watchdog.heard()
                match message:
                    case News(outputs):
                        self._watchdog.looped()
                        if outputs.stats is not None:
                            self._observe(outputs.stats)
                        await self._process(outputs.outputs)
                    case Beat(cpu_s):
                        self._watchdog.worked(cpu_s)
                    case Refused(engine_id):
                        self._outputs.refuse(engine_id, refusal(message))
                    case Reply(call_id, value):
                        reply = self._replies.pop(call_id)
                        if not reply.done():  # who asked may have gone
                            reply.set_result(value)
        except OctavoError as err:
            self._lose(str(err))
        except Exception as err:  # without a reader nobody would ever be answered
            logger.exception("the engine's messages cannot be read")
            self._lose(f"the engine's messages cannot be read: {type(err).__name__}: {err}")

    async def _watch(self) -> None:
        """Let the watchdog's time pass, until it says that the engine is lost."""
        seen_s = time.monotonic()
        cause = None
        while cause is None:
            await asyncio.sleep(WATCH_INTERVAL_S)
            before_s, seen_s = seen_s, time.monotonic()
            cause = self._watchdog.tick(seen_s - before_s, len(self._outputs))
        self._lose(cause)

    def _lose(self, cause: str) -> None:
        """The process is gone, or no good: end it and every open request."""
        self._client.kill()
        if self._recorder is not None:
            self._recorder.write(cause, msgspec.to_builtins(self.facts), self._outputs.open_requests())
        self._fail(EngineDeadError(cause))
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def _process(self, outputs: list[EngineOutput]) -> None:
        for start in range(0, len(outputs), OUTPUTS_PER_TURN):
            if start:
                await asyncio.sleep(0)
            self._abort_in_core(self._outputs.process(outputs[start : start + OUTPUTS_PER_TURN]))

    def _observe(self, stats: SchedulerStats) -> None:
        if stats.steps > self._stats.steps:
            self._watchdog.stepped()
            if self.on_step is not None:
                self.on_step(stats.step_tokens - self._stats.step_tokens)
        self._stats = stats
        if self._stats_logger is not None:
            self._stats_logger.observe(self.stats())
        if self._recorder is not None:
            self._recorder.observe(stats)

    def _fail(self, failure: EngineDeadError) -> None:
        """Nothing will be answered any more: end everything that waits."""
        if self._failure is not None:
            return
        self._failure = failure
        self._lost.set()
        self._earlier, self._stats = counters(self.stats()), SchedulerStats()
        self._outputs.fail_all(lambda: EngineDeadError(str(failure)))
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(EngineDeadError(str(failure)))
        self._replies.clear()
