"""Flags of the HTTP layer, seen from a client: sockets, TLS, logs, middleware, streams that are kept open."""

import logging
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from octavo.config import ServerConfig
from octavo.errors import ConfigError
from octavo.server.app import build_app
from octavo.server.connection import make_http_server
from octavo.server.listening import reserve_path, url_of
from octavo.server.serving import Lifecycle
from tests.script_model import write_random_model
from tests.server.world import joined, serve_app, strict_json


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a key and a certificate of 127.0.0.1 that vouches for itself."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [shutil.which("openssl") or "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
         "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


def test_https_is_spoken_with_a_certificate_and_clients_may_have_to_show_one(
    script_folder: Path, certificate: Path
) -> None:
    cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    config = ServerConfig(ssl_certfile=cert, ssl_keyfile=key, ssl_ca_certs=cert, ssl_cert_reqs=2)
    with serve_app(script_folder, config) as world:
        url = world.url.replace("http:", "https:") + "/livez"
        trusting = ssl.create_default_context(cafile=cert)
        with pytest.raises(httpx.TransportError):
            httpx.get(url, verify=trusting)
        trusting.load_cert_chain(cert, key)
        assert httpx.get(url, verify=trusting).status_code == 200


@pytest.mark.parametrize("name", ["missing.pem", "key.pem"])
def test_a_certificate_that_cannot_be_used_is_refused_by_name(certificate: Path, name: str) -> None:
    server = ServerConfig(ssl_certfile=str(certificate / name), ssl_keyfile=str(certificate / "key.pem"))
    with pytest.raises(ConfigError, match=f"--ssl-certfile .*{name}"):
        make_http_server(build_app(Lifecycle(server)), server)


def test_a_unix_socket_is_held_given_back_and_not_taken_from_a_server_that_lives(tmp_path: Path) -> None:
    path = str(tmp_path / "octavo.sock")
    with reserve_path(path) as held:
        assert url_of(held, "http") == f"unix:{path}"
        held.listen()
        with pytest.raises(ConfigError, match=r"--uds .* is in use"):
            reserve_path(path)
    reserve_path(path).close()  # nobody answers there any more
    with pytest.raises(ConfigError, match="choose another path"):
        reserve_path(str(tmp_path / "no" / "such" / "folder"))


def test_answers_are_logged_from_info_on_but_for_paths_that_are_left_out(
    script_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quiet = ServerConfig(uvicorn_log_level="info", disable_access_log_for_endpoints="/health, /metrics")
    make_http_server(build_app(Lifecycle(quiet)), quiet)
    access = logging.getLogger("uvicorn.access")
    access.addHandler(caplog.handler)
    try:
        for path in ("/health", "/metrics?x=1", "/v1/models"):
            access.info('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", path, "1.1", 200)
    finally:
        access.removeHandler(caplog.handler)
    assert caplog.messages == ['1.2.3.4:5 - "GET /v1/models HTTP/1.1" 200']


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's."""
    made = ModuleType("their_middleware")
    monkeypatch.setitem(sys.modules, "their_middleware", made)
    yield made


def test_middleware_of_the_users_sees_requests_that_have_a_key(script_folder: Path, module: ModuleType) -> None:
    async def stamp(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-stamp"] = request.url.path
        return response

    class Tag:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            scope.setdefault("state", {})["request_id"] = "tagged"
            await self.app(scope, receive, send)

    vars(module).update(stamp=stamp, Tag=Tag, number=3)
    config = ServerConfig(api_key=("k",), middleware=("their_middleware.stamp", "their_middleware.Tag"))
    with serve_app(script_folder, config) as world:
        refused = world.http.get("/v1/models")
        assert refused.status_code == 401 and "x-stamp" not in refused.headers
        answer = world.http.post(
            "/v1/completions", json={"prompt": "hi", "max_tokens": 1}, headers={"Authorization": "Bearer k"}
        )
        assert answer.headers["x-stamp"] == "/v1/completions" and answer.json()["id"] == "cmpl-tagged"
    for name, complaint in (("nowhere.x", "cannot be imported"), ("their_middleware.number", "neither a class")):
        with pytest.raises(ConfigError, match=f"--middleware {name} .*{complaint}"):
            build_app(Lifecycle(ServerConfig(middleware=(name,))))


def test_a_root_path_must_be_a_path(script_folder: Path) -> None:
    with pytest.raises(ConfigError, match="--root-path is 'llm' but must begin with a slash"):
        build_app(Lifecycle(ServerConfig(root_path="llm")))
    with serve_app(script_folder, ServerConfig(root_path="/llm/")) as world:
        assert world.http.get("/llm/v1/models").status_code == world.http.get("/v1/models").status_code == 200
        assert world.http.get("/openapi.json").json()["servers"] == [{"url": "/llm"}]


def test_docs_can_be_left_out(script_folder: Path) -> None:
    with serve_app(script_folder, ServerConfig(disable_fastapi_docs=True)) as world:
        assert [world.http.get(path).status_code for path in ("/docs", "/openapi.json")] == [404, 404]


def test_a_silent_stream_carries_comments_that_clients_skip(tmp_path: Path) -> None:
    folder = write_random_model(tmp_path, context_length=4096)
    config = ServerConfig(sse_keep_alive_interval=0.1)
    body = {"prompt": "hi", "max_tokens": 3000, "ignore_eos": True, "temperature": 0}
    with serve_app(folder, config, max_num_seqs=1, num_gpu_blocks_override=5000) as world:
        with world.send_and_hold("/v1/completions", **body):  # holds the one seat
            time.sleep(0.3)
            with world.send_and_hold("/v1/completions", **{**body, "max_tokens": 2}, stream=True) as waiting:
                waiting.settimeout(10)
                seen = b""
                while seen.count(b": keep-alive\n\n") < 3:
                    seen += waiting.recv(65536)
                assert b"200 OK" in seen and b"data:" not in seen
        raw = world.post("/v1/completions", prompt="hi", max_tokens=300, ignore_eos=True, temperature=0, stream=True)
        events = [event for event in raw.text.split("\n\n") if event]
        assert all(event.startswith(("data: ", ": keep-alive")) for event in events)
        chunks = [strict_json(event[6:]) for event in events if event.startswith("data: {")]
        assert joined(chunks) == world.complete("hi", max_tokens=300, ignore_eos=True)["choices"][0]["text"]


def test_what_fails_before_the_first_comment_has_its_own_status(script_folder: Path) -> None:
    with serve_app(script_folder, ServerConfig(sse_keep_alive_interval=5)) as world:
        assert world.post("/v1/completions", prompt="x" * 5000, stream=True).status_code == 400


def test_a_socket_of_another_kind_is_named_as_clients_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        assert url_of(sock, "https") == f"https://127.0.0.1:{sock.getsockname()[1]}"
