"""Send a workload to a running server over HTTP and time the stream. Knows the OpenAI completions API, no engine."""

import asyncio
import time

import httpx
import msgspec

from octavo.bench.peers.runner import RequestTimes
from octavo.bench.timing import summarize
from octavo.bench.workload import WorkItem
from octavo.messages import Progress


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None


class _Chunk(msgspec.Struct):
    """What is looked at of an event; on two cores a client that reads more slows down the server it measures."""

    choices: list[_Choice] = []
    error: object = None


_decode = msgspec.json.Decoder(_Chunk).decode


async def run_online(
    url: str,
    model: str,
    workload: list[WorkItem],
    *,
    api_key: str | None = None,
    max_concurrency: int | None = None,
    request_rate: float | None = None,
    on_progress: Progress | None = None,
) -> dict[str, object]:
    """Stream every item through `POST {url}/completions`.

    Args:
        url: base of the API, e.g. "http://127.0.0.1:8000/v1".
        max_concurrency: most requests open at once; None is no limit.
        request_rate: requests per second, evenly spaced; None sends each when its item arrives.

    Returns:
        The figures of `summarize`, and `client_cpu_s`: CPU time of this process, which the server may have lacked.
    """
    gate = asyncio.Semaphore(max_concurrency or len(workload))
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=None)
    times: list[RequestTimes] = []
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=None, limits=limits) as client:

        async def one(index: int, item: WorkItem) -> None:
            await asyncio.sleep(index / request_rate if request_rate else item.at_s)
            async with gate:
                times.append(await _stream(client, model, item))
            if on_progress is not None:
                on_progress("requests", len(times), len(workload))

        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        await asyncio.gather(*(one(i, item) for i, item in enumerate(workload)))
        elapsed_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
        return {**summarize(times, elapsed_s), "client_cpu_s": round(cpu_s, 3)}


async def _stream(client: httpx.AsyncClient, model: str, item: WorkItem) -> RequestTimes:
    body = {
        "model": model,
        "prompt": item.prompt_token_ids,
        "max_tokens": item.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    times = RequestTimes(time.perf_counter(), len(item.prompt_token_ids))
    try:
        async with client.stream("POST", "/completions", json=body) as response:
            if response.status_code != 200:
                times.error = (await response.aread()).decode(errors="replace")
                return times
            rest = b""
            async for data in response.aiter_raw():
                *events, rest = (rest + data).split(b"\n\n")
                now = time.perf_counter()
                for event in events:
                    if event.startswith(b"data: {"):
                        _record(times, _decode(event[6:]), now)
    except httpx.HTTPError as err:
        times.error = f"{type(err).__name__}: {err}"
    return times


def _record(times: RequestTimes, chunk: _Chunk, now: float) -> None:
    if chunk.error is not None:
        times.error = str(chunk.error)
    for choice in chunk.choices:
        times.token_times_s.extend([now] * len(choice.token_ids or ()))
