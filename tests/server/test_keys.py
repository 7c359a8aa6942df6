"""API keys: hashes, scopes, the file, and what a key of each scope may do."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi import FastAPI

from octavo.cli import main
from octavo.config import ServerConfig
from octavo.errors import ConfigError
from octavo.server.app import build_app
from octavo.server.keys import Key, KeyRing, Scope, hashed, new_key
from octavo.server.middleware import CONSOLE_FILES, good_scopes, is_console_page
from octavo.server.serving import Lifecycle
from tests.server.world import World, assert_refused, serve_app, wait_for

OPEN = {"/health", "/livez", "/readyz", "/ping", "/console/about"}
"""Routes that need no key."""
PAGE = {("GET", "/"), ("HEAD", "/"), ("GET", CONSOLE_FILES), ("HEAD", CONSOLE_FILES)}
"""Nor does the console's page, which asks for one."""
ANY_KEY = {"/metrics", "/load", "/version"}
ADMINS = {"/server_info"}
"""Routes that only keys of the scope admin reach; a new one has to be written down here, or be for keys of infer."""


def test_a_key_is_remembered_by_its_salted_hash_only() -> None:
    key = new_key()
    first, second = hashed("a", key, [Scope.INFER]), hashed("a", key, [Scope.INFER])
    assert first.matches(key.encode()) and not first.matches(key.encode() + b"x") and not first.matches(b"")
    assert first.digest != second.digest and key not in first.line() and len(key) > 50 and new_key() != key


def test_a_file_of_keys_is_read_and_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# who\n\n{hashed('ann', 'k1', [Scope.INFER]).line()}\n")
    ring = KeyRing(["plain"], str(file))
    found = ring.find(b"k1")
    assert found is not None and found.name == "ann" and found.scopes == {Scope.INFER}
    plain = ring.find(b"plain")
    assert plain is not None and plain.scopes == set(Scope)
    file.write_text(hashed("bob", "k2", Scope).line())
    ring.reload()
    assert ring.find(b"k1") is None and ring.find(b"k2") is not None and ring.find(b"plain") is not None
    file.write_text("not a line")
    ring.reload()
    assert ring.find(b"k2") is not None and "stay as they are" in caplog.text
    file.write_text("")
    ring.reload()
    assert ring and ring.find(b"k2") is None, "an empty file opens nothing"


@pytest.mark.parametrize(
    "line",
    ["sk-secret", "ann infer", "ann root sha256:00:00", "ann infer md5:" + "00" * 16 + ":" + "00" * 32,
     "ann infer sha256:" + "00" * 16 + ":00", "ann infer sha256:sk-secret:" + "00" * 32, "ann infer,boss sha256:a:b"],
)  # fmt: skip
def test_a_line_that_is_none_stops_the_start_and_is_not_quoted(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# keys\n{line}\n")
    with pytest.raises(ConfigError, match="line 2") as caught:
        KeyRing((), str(file))
    assert "secret" not in str(caught.value)


def test_a_missing_file_and_a_name_twice_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        KeyRing((), str(tmp_path / "none"))
    file = tmp_path / "keys"
    file.write_text("\n".join(hashed("ann", key, Scope).line() for key in ("a", "b")))
    with pytest.raises(ConfigError, match="'ann' twice"):
        KeyRing((), str(file))


def test_the_command_shows_a_key_once_and_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["key", "new", "ann", "--scope", "infer", "admin"]) == 0
    key, line = (text.split(maxsplit=1)[1] for text in capsys.readouterr().out.splitlines())
    file = tmp_path / "keys"
    file.write_text(line)
    assert main.run(["key", "new", "bob", "--file", str(file)]) == 0
    second = capsys.readouterr().out.split()[1]
    ring = KeyRing((), str(file))
    found = [ring.find(one.encode()) for one in (key, second)]
    assert [one and (one.name, one.scopes) for one in found] == [("ann", set(Scope)), ("bob", {Scope.INFER})]
    assert main.run(["key", "new", "a b"]) == 2
    assert main.run(["key", "new", "bob", "--file", str(file)]) == 2  # the server would not start with two of that name
    assert capsys.readouterr().out == "" and len(file.read_text().splitlines()) == 2
    assert main.run(["key", "new", "cy", "--file", str(tmp_path / "fresh")]) == 0
    assert (tmp_path / "fresh").stat().st_mode & 0o077 == 0


class Operation(NamedTuple):
    """A method of a route."""

    method: str
    path: str


def operations_under(router: Any) -> Iterator[Operation]:
    """Those of all routes, the ones that the document does not list included."""
    for route in router.routes:
        if not hasattr(route, "path"):
            yield from operations_under(route.original_router)
            continue
        for method in route.methods or ("POST",):
            yield Operation(method, route.path.partition("{")[0])


def statuses(app: FastAPI, operations: Iterable[Operation], key: str) -> dict[Operation, int]:
    """What each is answered, while the model is still loaded. No body is right, so no route does anything."""

    async def ask_all() -> dict[Operation, int]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app, False), base_url="http://test") as http:
            return {each: (await http.request(*each, headers=headers)).status_code for each in operations}

    return asyncio.run(ask_all())


def keyed_app(folder: Path, **options: Any) -> FastAPI:
    """An app with a key for each scope, which is the scope's name."""
    file = folder / "keys"
    file.write_text("\n".join(hashed(scope, scope, [scope]).line() for scope in Scope))
    return build_app(Lifecycle(ServerConfig(api_key_file=str(file), files_dir=str(folder / "files"), **options)))


def test_every_route_needs_a_key_but_those_that_are_open_on_purpose(tmp_path: Path) -> None:
    app = keyed_app(tmp_path)
    operations = set(operations_under(app))
    assert {("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/load"), ("POST", "/v1/chat/completions"), *PAGE} <= (
        operations
    )
    assert len(operations) > 50
    without = statuses(app, operations, key="")
    assert {each for each, status in without.items() if status != 401} == PAGE | {
        each for each in operations if each.path in OPEN
    }
    denied = {each.path for each, status in statuses(app, operations, key="infer").items() if status == 403}
    assert denied == ADMINS
    good = {each.path for each, status in statuses(app, operations, key="admin").items() if status != 403}
    assert good == {*OPEN, *ANY_KEY, *ADMINS, "/", CONSOLE_FILES}


def test_what_is_no_route_is_for_admins() -> None:
    assert is_console_page("GET", CONSOLE_FILES + "x") and not is_console_page("POST", CONSOLE_FILES + "x")
    for path in ("/sleep", "/v1/load_lora_adapter", "/v1", "/x", "//v1/models", "/V1/models", "/collective_rpc", ""):
        assert good_scopes(path) == {Scope.ADMIN}, path


def test_metrics_are_open_if_told_to_and_nothing_else(tmp_path: Path) -> None:
    app = keyed_app(tmp_path, metrics_without_key=True)
    asked = [Operation("GET", path) for path in ("/metrics", "/load", "/version", "/metricsx", "/v1/models")]
    assert list(statuses(app, asked, key="").values()) == [200, 401, 401, 401, 401]
    document = app.openapi()
    assert "security" not in document["paths"]["/metrics"]["get"] and document["paths"]["/load"]["get"]["security"]


@pytest.fixture(scope="module")
def keyed(script_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Path]]:
    """A server with a key file of one key per scope."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    keys: list[Key] = [hashed("user", "k-user", [Scope.INFER]), hashed("boss", "k-boss", [Scope.ADMIN])]
    file.write_text("\n".join(key.line() for key in keys))
    with serve_app(script_folder, ServerConfig(api_key_file=str(file), disable_log_stats=True)) as world:
        yield world, file


def test_a_key_does_what_its_scope_allows(keyed: tuple[World, Path]) -> None:
    world, _ = keyed

    def status(path: str, **headers: str) -> int:
        return world.http.get(
            path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        ).status_code

    user, boss = "Bearer k-user", "Bearer k-boss"
    assert [status("/v1/models", Authorization=key) for key in (user, boss, "Bearer x", "k-user")] == [
        200,
        403,
        401,
        401,
    ]
    assert status("/v1/models", X_Api_Key="k-user") == 200 and status("/v1/models", X_Api_Key="k") == 401
    assert [status("/no/such", Authorization=key) for key in (user, boss)] == [403, 404]
    assert status("/health") == 200
    error = assert_refused(world.http.get("/v1/models", headers={"Authorization": boss}), 403)
    assert "infer" in error["message"] and error["type"] == "PermissionDeniedError"


def test_keys_are_exchanged_while_serving(keyed: tuple[World, Path]) -> None:
    world, file = keyed
    text = file.read_text()
    try:
        file.write_text(hashed("new", "k-new", Scope).line())
        world.lifecycle.keys.reload()
        headers = {"Authorization": "Bearer k-user"}
        wait_for(lambda: world.http.get("/v1/models", headers=headers).status_code == 401)
        assert world.http.get("/v1/models", headers={"Authorization": "Bearer k-new"}).status_code == 200
    finally:
        file.write_text(text)
        world.lifecycle.keys.reload()
