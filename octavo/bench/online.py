"""Send a workload to a running server over HTTP and time the stream. Knows the OpenAI completions API, no engine."""

import asyncio
import json
import time

import httpx

from octavo.bench.peers.runner import RequestTimes
from octavo.bench.timing import summarize
from octavo.bench.workload import WorkItem
from octavo.messages import Progress


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

        start_s = time.perf_counter()
        await asyncio.gather(*(one(i, item) for i, item in enumerate(workload)))
        return summarize(times, time.perf_counter() - start_s)


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
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    _record(times, json.loads(line[6:]))
    except httpx.HTTPError as err:
        times.error = f"{type(err).__name__}: {err}"
    return times


def _record(times: RequestTimes, chunk: dict[str, object]) -> None:
    if "error" in chunk:
        times.error = str(chunk["error"])
    choices = chunk.get("choices") or []
    assert isinstance(choices, list)
    for choice in choices:
        times.token_times_s.extend([time.perf_counter()] * len(choice.get("token_ids") or []))
