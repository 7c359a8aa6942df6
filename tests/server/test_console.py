"""The console's routes: its page and files, who may have what, and what the engine view tells."""

import asyncio
import base64
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from octavo.config import ServerConfig
from octavo.errors import EngineDeadError
from octavo.messages import PageMap
from octavo.server import engine_view
from octavo.server.app import build_app
from octavo.server.engine_view import EngineView
from octavo.server.routes.console import FOLDER, MEDIA_TYPES, read_file
from octavo.server.serving import Lifecycle
from tests.server.world import World, assert_refused, serve_app, wait_for

SECRET = "open-the-book"


@pytest.fixture(scope="module")
def locked(script_folder: Path) -> Iterator[World]:
    """A server with a key."""
    with serve_app(script_folder, ServerConfig(api_key=(SECRET,), disable_log_stats=True)) as world:
        yield world


def test_the_page_and_every_file_have_their_type_and_a_policy_without_exceptions(script: World) -> None:
    for path in ("/", *(f"/console/files/{file.name}" for file in FOLDER.iterdir())):
        response = script.http.get(path)
        assert response.status_code == 200, path
        kind = MEDIA_TYPES[Path("index.html" if path == "/" else path).suffix]
        assert response.headers["content-type"].startswith(kind)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"


def test_a_file_that_has_not_changed_is_not_sent_again(script: World) -> None:
    first = script.http.get("/")
    assert first.headers["cache-control"] == "no-cache"
    for known in (first.headers["etag"], f'"x", W/{first.headers["etag"]}'):
        again = script.http.get("/", headers={"If-None-Match": known})
        assert again.status_code == 304 and again.content == b""
        assert again.headers["etag"] == first.headers["etag"]
    assert script.http.get("/", headers={"If-None-Match": '"other"'}).content == first.content
    head = script.http.head("/")
    assert head.status_code == 200 and head.content == b""
    assert int(head.headers["content-length"]) == len(first.content)


@pytest.mark.parametrize("name", ["none.js", "..%2frun.py", "%2e%2e/run.py", "../run.py", "", "console.css/x"])
def test_nothing_but_the_consoles_files_is_served(script: World, name: str) -> None:
    assert_refused(script.http.get(f"/console/files/{name}"), 404)


def test_no_file_names_another_origin() -> None:
    for file in FOLDER.iterdir():
        text = file.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://|@import|\burl\(|['\"]//", text), file.name


def test_the_page_is_public_and_what_it_shows_is_not(locked: World) -> None:
    assert locked.http.get("/").status_code == 200
    assert locked.http.head("/").status_code == 200
    assert locked.http.get("/console/files/console.css").status_code == 200
    assert locked.http.get("/console/about").json()["needs_key"] is True
    for method, path in (("GET", "/console/state"), ("GET", "/console/"), ("POST", "/console/files/x")):
        assert_refused(locked.http.request(method, path), 401)
    assert locked.http.post("/").status_code == 401  # TGI's route, and its form of errors
    headers = {"Authorization": f"Bearer {SECRET}"}
    assert locked.http.get("/console/state", headers=headers).status_code == 200


def test_a_server_may_have_no_console(script_folder: Path) -> None:
    with serve_app(script_folder, ServerConfig(disable_console=True, disable_log_stats=True)) as world:
        for path in ("/console/files/console.css", "/console/state", "/console/about"):
            assert_refused(world.http.get(path), 404)
        assert world.http.get("/").status_code == 405


def test_the_page_is_there_behind_a_prefix_and_while_the_model_is_loaded() -> None:
    app = build_app(Lifecycle(ServerConfig(root_path="/llm", api_key=(SECRET,))))

    async def ask(path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as http:
            return await http.get(path, headers={"Authorization": f"Bearer {SECRET}"} if "state" in path else {})

    for path in ("/llm/", "/llm/console/files/app.js", "/"):
        assert asyncio.run(ask(path)).status_code == 200, path
    assert asyncio.run(ask("/llm/console/about")).json()["status"] == "loading"
    assert_refused(asyncio.run(ask("/llm/console/state")), 503)


def test_files_are_read_when_they_are_asked_for(script_folder: Path) -> None:
    read_file.cache_clear()
    with serve_app(script_folder) as world:
        assert read_file.cache_info().currsize == 0
        world.http.get("/")
        assert read_file.cache_info().currsize == 1


def test_the_state_tells_pages_counters_and_requests_without_what_was_said(varied: World) -> None:
    varied.complete("a secret" * 20, max_tokens=20, ignore_eos=True)
    varied.complete("a secret" * 20, max_tokens=20, ignore_eos=True)
    wait_for(lambda: state_of(varied)["stats"]["num_running"] == 0)
    state = state_of(varied)
    assert state["status"] == "ready" and state["model"] == "test" and state["seats"] == 8
    [group] = state["groups"]
    states = base64.b64decode(group["states"])
    assert group["num_blocks"] == len(states) == 256 and group["stride"] == 1
    assert group["num_used"] == 0 and states.count(1) == group["num_reusable"] > 0
    assert set(states) <= {0, 1}
    latest, before = state["requests"][:2]
    assert latest["prompt_tokens"] == before["prompt_tokens"] == 160 and latest["tokens"] == 20
    assert latest["cached_tokens"] > 0 and latest["finish_reason"] == "length"
    assert 0 <= latest["queue_ms"] <= latest["ttft_ms"] <= latest["total_ms"]
    assert "secret" not in varied.http.get("/console/state").text


def test_a_request_that_runs_is_seen_with_the_pages_it_holds(varied: World) -> None:
    def sees_it() -> bool:
        state = state_of(varied)
        states = base64.b64decode(state["groups"][0]["states"])
        running = [request for request in state["requests"] if request["finish_reason"] is None]
        return bool(running) and states.count(2) > 0 and state["stats"]["num_running"] > 0

    for _ in range(5):  # a look comes between two steps, or too late
        with varied.send_and_hold("/v1/completions", prompt="hi", max_tokens=400, ignore_eos=True, stream=True):
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline:
                if sees_it():
                    return
    raise AssertionError("never seen")


def state_of(world: World) -> dict:
    response = world.http.get("/console/state")
    assert response.status_code == 200, response.text
    return response.json()


# ---------------------------------------------------------------- looking at the pages


class Looked:
    """A serving whose engine answers when it is told to."""

    def __init__(self) -> None:
        self.engine = self
        self.num_asked = 0
        self.may_answer = asyncio.Event()

    async def page_maps(self) -> list[PageMap]:
        self.num_asked += 1
        await self.may_answer.wait()
        return [PageMap(num_blocks=1, num_used=0, num_reusable=0, stride=1, states=bytes([self.num_asked]))]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_view, "PATIENCE_S", 0.05)
    monkeypatch.setattr(engine_view, "MIN_INTERVAL_S", 0.1)


def test_many_viewers_ask_the_engine_once_and_none_waits_for_a_long_step(clock: None) -> None:
    async def watch() -> None:
        serving, view = Looked(), EngineView(None)  # type: ignore[arg-type]
        start = time.monotonic()
        await asyncio.gather(*(view._look_at_pages(serving) for _ in range(20)))  # type: ignore[arg-type]
        assert time.monotonic() - start < 1 and serving.num_asked == 1 and view._pages == []
        await asyncio.sleep(0.1)
        await view._look_at_pages(serving)  # type: ignore[arg-type]
        assert serving.num_asked == 1  # the engine still owes the first answer
        serving.may_answer.set()
        await view._look_at_pages(serving)  # type: ignore[arg-type]
        assert view._pages[0].states == b"\1"

    asyncio.run(watch())


def test_an_engine_that_is_gone_has_no_pages(clock: None) -> None:
    class Gone:
        async def page_maps(self) -> list[PageMap]:
            raise EngineDeadError("gone")

    async def watch() -> None:
        serving, view = Looked(), EngineView(None)  # type: ignore[arg-type]
        serving.engine = Gone()  # type: ignore[assignment]
        view._pages = [PageMap(num_blocks=1, num_used=0, num_reusable=0, stride=1, states=b"\0")]
        await view._look_at_pages(serving)  # type: ignore[arg-type]
        assert view._pages == []

    asyncio.run(watch())
