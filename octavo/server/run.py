"""`octavo serve`: the port first, then the engine, then the HTTP server beside it, and an end for every case.

The port is ours from the start, so a taken one is an error at once; clients can connect from when the model's files
are known to be whole, and are told that it is loading. A model that cannot be served never opens a port.

Ends: a signal drains and returns 0, a second one leaves at once; a model that cannot be loaded and an engine that is
lost raise their error, unless it is to be started again. In no case does a process stay behind: the engine leaves when
this process does.
"""

import asyncio
import ctypes
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple, TypeVar, cast

import uvloop

from octavo import envs
from octavo.config import EngineConfig, ServerConfig
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.child import EngineChild
from octavo.engine.input_processor import default_sampling_params
from octavo.engine.protocol import EngineFacts
from octavo.errors import EngineDeadError, OctavoError
from octavo.logging import get_logger
from octavo.messages import LOADING_WEIGHTS, Progress
from octavo.server.app import build_app
from octavo.server.connection import make_http_server
from octavo.server.listening import open_to_clients, reserve, reserve_path, url_of
from octavo.server.restarts import Restarts
from octavo.server.serving import Lifecycle, make_serving
from octavo.server.turns import check_formats

T = TypeVar("T")

logger = get_logger(__name__)


class Banner(NamedTuple):
    """What there is to say once the server is ready.

    Attributes:
        kv_pages: pages of the KV group that has most.
        kv_tokens: tokens of one long request that they hold.
        full_length_requests: requests of `max_model_len` tokens that fit at once.
        sampling: the model's own defaults, which apply where a request says nothing.
    """

    url: str
    model: str
    device: str
    dtype: str
    max_model_len: int
    kv_pages: int
    kv_tokens: int
    full_length_requests: float
    sampling: dict[str, int | float]
    load_s: float


def serve(
    server: ServerConfig,
    make_config: Callable[[], EngineConfig],
    *,
    progress: Progress | None = None,
    on_ready: Callable[[Banner], None] | None = None,
    child: EngineChild | None = None,
) -> int:
    """Serve until told to stop. Returns the exit code.

    Args:
        make_config: resolves the model, and may take long (a download); runs in a thread once the port is ours.
        progress: told about loading.
        on_ready: called once, when requests are taken.
        child: the engine's process, started already; the caller closes it.

    Raises:
        ConfigError: the port is taken, or options do not fit.
        ModelError: the model cannot be loaded.
        EngineDeadError: the engine was lost while serving; every open request has been told.
    """
    if not server.api_key and envs.API_KEY.get():
        server = replace(server, api_key=(envs.API_KEY.get(),))
    with _reserved(server) as sock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Server(server, sock, make_config, progress, on_ready, child).run())


@contextmanager
def _reserved(server: ServerConfig) -> Iterator[socket.socket]:
    """The port or path, ours until the end."""
    if server.uds is None:
        with reserve(server.host, server.port) as sock:
            yield sock
        return
    with reserve_path(server.uds) as sock:
        try:
            yield sock
        finally:
            with suppress(FileNotFoundError):
                os.unlink(server.uds)


class _Server:
    """One run of the server."""

    def __init__(
        self,
        server: ServerConfig,
        sock: socket.socket,
        make_config: Callable[[], EngineConfig],
        progress: Progress | None,
        on_ready: Callable[[Banner], None] | None,
        child: EngineChild | None,
    ) -> None:
        self._server = server
        self._sock = sock
        self._make_config = make_config
        self._progress = progress
        self._on_ready = on_ready
        self._child = child
        self._stop = asyncio.Event()
        self._checked = asyncio.Event()  # the model's files are whole
        self._engine: AsyncLLM | None = None
        self._restarts = Restarts()

    async def run(self) -> int:
        """Load and serve until a signal or a failure."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        loading = asyncio.create_task(self._load(), name="load")
        try:
            return await self._serve(loading)
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            if self._engine is not None:
                self._engine.close()

    async def _serve(self, loading: "asyncio.Task[EngineFacts]") -> int:
        lifecycle = Lifecycle(self._server)
        if self._server.api_key_file is not None:  # otherwise a terminal that closes ends the server
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lifecycle.keys.reload)
        http = make_http_server(build_app(lifecycle), self._server)
        await _first(loading, self._checked.wait(), self._stop.wait())
        if self._stop.is_set():
            return 0
        if loading.done():
            await loading
        open_to_clients(self._sock)
        answering = asyncio.create_task(http.serve([self._sock]), name="http")
        try:
            await _first(loading, answering, self._stop.wait())
            if not self._stop.is_set():
                facts = await loading
                lifecycle.ready(make_serving(self._loaded_engine(), self._server))
                await self._serve_until_stopped(lifecycle, facts, answering)
            return 0
        finally:
            http.should_exit = True
            await answering
            if lifecycle.tracer is not None:
                await asyncio.to_thread(lifecycle.tracer.close)

    async def _serve_until_stopped(
        self, lifecycle: Lifecycle, facts: EngineFacts, answering: "asyncio.Task[None]"
    ) -> None:
        engine = self._loaded_engine()
        gc.freeze()  # what start-up made stays for good; collections need not look at it again
        if self._on_ready is not None:
            scheme = "https" if self._server.ssl_certfile else "http"
            self._on_ready(_banner(url_of(self._sock, scheme), engine.config, facts))
        while True:
            lost = asyncio.create_task(engine.lost())
            await _first(answering, self._stop.wait(), lost)
            if not lost.done():
                lost.cancel()
                break
            if not await self._restart(lifecycle, lost.result()):
                return  # nothing is open
        lifecycle.drain()
        await engine.drain(self._server.drain_timeout)
        engine.check_health()  # lost meanwhile: what was open has not ended well

    async def _restart(self, lifecycle: Lifecycle, cause: OctavoError) -> bool:
        """Start the lost engine again. False if told to stop meanwhile.

        Raises:
            EngineDeadError: that is not wanted, or was tried too often.
        """
        engine = self._loaded_engine()
        while True:
            delay_s = self._restarts.next_delay_s(time.monotonic()) if self._server.restart_engine else None
            if delay_s is None:
                lifecycle.fail(str(cause))
                raise EngineDeadError(str(cause))
            logger.warning("%s; the engine is started again in %g s", cause, delay_s)
            await _first(self._stop.wait(), asyncio.sleep(delay_s))
            starting = asyncio.create_task(engine.restart())
            await _first(starting, self._stop.wait())
            if self._stop.is_set():
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                return False
            try:
                await starting
            except OctavoError as err:
                cause = err
                continue
            logger.warning("the engine is back")
            lifecycle.serving().metrics.restarts.inc()
            return True

    async def _load(self) -> EngineFacts:
        config = await _in_thread(self._make_config)
        check_formats(self._server)  # plug-ins, which may add some, are loaded now
        self._engine = AsyncLLM(
            config,
            watchdog_timeout_s=self._server.watchdog_timeout,
            log_stats=not self._server.disable_log_stats,
            child=self._child,
            crash_dump_folder=self._server.crash_dump_folder,
        )
        _release_memory()  # here, where all wait for the engine
        return await self._engine.start(self._on_progress)

    def _on_progress(self, stage: str, done: int, total: int) -> None:
        if stage == LOADING_WEIGHTS:
            self._checked.set()
        if self._progress is not None:
            self._progress(stage, done, total)

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            os._exit(128 + number)  # the engine process sees its standard input end, and leaves
        logger.info("received %s, shutting down", signal.Signals(number).name)
        self._stop.set()

    def _loaded_engine(self) -> AsyncLLM:
        assert self._engine is not None  # `_load` has returned
        return self._engine


def _release_memory() -> None:
    """Drop what start-up left behind, and have the C library return it: vocabularies leave many small holes."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


async def _first(*awaitables: Awaitable[object]) -> None:
    """Wait until one of them is done. What is not a task of somebody else is cancelled then."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, awaitable in zip(tasks, awaitables, strict=True):
            if task is not awaitable:
                task.cancel()


async def _in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread that nobody waits for at exit, unlike one of asyncio's."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, err: BaseException | None) -> None:
        if done.cancelled():
            return
        if err is not None:
            done.set_exception(err)
        else:
            done.set_result(cast(T, result))

    def body() -> None:
        result, err = None, None
        try:
            result = work()
        except BaseException as caught:
            err = caught
        with suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(settle, result, err)

    threading.Thread(target=body, name="resolve", daemon=True).start()
    return await done


def _banner(url: str, config: EngineConfig, facts: EngineFacts) -> Banner:
    pages = max(facts.num_blocks)
    tokens = pages * facts.block_size
    return Banner(
        url=url,
        model=config.served_model_name,
        device=facts.device,
        dtype=facts.dtype,
        max_model_len=facts.max_model_len,
        kv_pages=pages,
        kv_tokens=tokens,
        full_length_requests=tokens / facts.max_model_len,
        sampling=default_sampling_params(config),
        load_s=facts.load_s,
    )
