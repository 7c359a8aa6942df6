"""/v1/files and /v1/batches, by the official client: what is answered, what is refused, and what survives a restart."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.config import ServerConfig
from octavo.errors import ConfigError
from octavo.server.files import FileStore
from octavo.server.lines import AnswerFile
from tests.server.conftest import SENTENCE
from tests.server.world import World, assert_refused, serve_app, wait_for

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, url: str = CHAT, method: str = "POST", **body: Any) -> dict[str, Any]:
    if url == CHAT:
        body.setdefault("messages", [{"role": "user", "content": "hi"}])
    return {"custom_id": custom_id, "method": method, "url": url, "body": {"temperature": 0, **body}}


def jsonl(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def client_of(world: World, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{world.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
def client(script: World) -> Iterator[openai.OpenAI]:
    with client_of(script) as client:
        yield client


def finished(client: openai.OpenAI, batch_id: str) -> Any:
    wait_for(lambda: client.batches.retrieve(batch_id).status in ENDED, 20)
    return client.batches.retrieve(batch_id)


def run(client: openai.OpenAI, content: bytes, endpoint: Any = CHAT, **fields: Any) -> Any:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields)
    return finished(client, batch.id)


def answers(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    if file_id is None:
        return {}
    lines = [json.loads(each) for each in client.files.content(file_id).text.splitlines()]
    assert len({each["custom_id"] for each in lines}) == len(lines)
    return {each["custom_id"]: each for each in lines}


def test_a_file_is_kept_listed_read_and_deleted(client: openai.OpenAI) -> None:
    content = jsonl(line("a"))
    made = client.files.create(
        file=("in.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert made.bytes == len(content) and made.filename == "in.jsonl"
    assert made.expires_at == made.created_at + 3600
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).read() == content
    assert made.id in [file.id for file in client.files.list()]
    assert made.id not in [file.id for file in client.files.list(purpose="batch_output")]
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError, match=made.id):
        client.files.retrieve(made.id)


def test_lists_come_in_pages(client: openai.OpenAI) -> None:
    made = [client.files.create(file=(f"{i}.jsonl", b"{}"), purpose="batch").id for i in range(3)]
    page = client.files.list(limit=2, order="desc")
    assert [file.id for file in page.data] == made[:0:-1] and page.has_more
    assert client.files.list(limit=2, order="desc", after=made[1]).data[0].id == made[0]


def test_a_batch_answers_as_the_route_does(client: openai.OpenAI, script: World) -> None:
    batch = run(client, jsonl(line("good"), line("bad", max_tokens=-1), line("third", n=2)), metadata={"who": "me"})
    assert batch.status == "completed" and batch.metadata == {"who": "me"}
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (3, 2, 1)
    good, bad = answers(client, batch.output_file_id), answers(client, batch.error_file_id)
    assert set(good) == {"good", "third"} and set(bad) == {"bad"}
    response = good["good"]["response"]
    assert response["status_code"] == 200 and good["good"]["error"] is None
    assert response["body"]["choices"][0]["message"]["content"] == SENTENCE
    assert response["body"]["usage"] == script.chat()["usage"] | {
        "prompt_tokens_details": response["body"]["usage"]["prompt_tokens_details"]
    }
    assert len(good["third"]["response"]["body"]["choices"]) == 2
    assert bad["bad"]["response"]["status_code"] == 400
    assert bad["bad"]["response"]["body"]["error"]["param"] == "max_tokens"
    assert batch.id in [each.id for each in client.batches.list(limit=5)]


def test_completions_and_token_ids_may_be_batched_too(client: openai.OpenAI) -> None:
    batch = run(client, jsonl(line("a", "/v1/completions", prompt="hi")), "/v1/completions")
    assert answers(client, batch.output_file_id)["a"]["response"]["body"]["choices"][0]["text"] == SENTENCE
    body = {"token_ids": [5], "sampling_params": {"temperature": 0}}
    content = jsonl({"custom_id": "a", "method": "POST", "url": "/inference/v1/generate", "body": body})
    assert run(client, content, "/inference/v1/generate").request_counts.completed == 1


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", {0: "no lines"}),
        (b"\n\n", {0: "no lines"}),
        (jsonl(line("a")) + b"{nonsense\n" + b"\xff\n" + b"[]\n", {2: "not valid JSON", 3: "UTF-8", 4: "a list"}),
        (jsonl(line("a"), line("a")), {2: "two lines"}),
        (jsonl(line("")), {1: "custom_id"}),
        (jsonl(line("a", method="GET")), {1: "POST"}),
        (jsonl(line("a", "/v1/completions")), {1: "url"}),
        (jsonl(line("a", stream=True)), {1: "streamed"}),
        (jsonl({**line("a"), "body": []}), {1: "body"}),
    ],
)
def test_a_bad_file_fails_its_batch_and_names_the_lines(
    client: openai.OpenAI, content: bytes, wrong: dict[int, str]
) -> None:
    batch = run(client, content)
    assert batch.status == "failed" and batch.output_file_id is None
    told = {error.line or 0: error.message for error in batch.errors.data}
    assert set(told) == set(wrong)
    assert all(wrong[number] in message for number, message in told.items())


def test_bad_requests_are_refused(script: World, client: openai.OpenAI) -> None:
    file_id = client.files.create(file=b"x", purpose="batch").id
    good = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    for changed, param in (
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"endpoint": "/metrics"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": "b" * 600}}, "metadata.a"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ):
        assert_refused(script.post("/v1/batches", **{**good, **changed}), (400, 404), param)
    for path in ("/v1/batches/none", "/v1/files/none", "/v1/files/none/content"):
        assert_refused(script.http.get(path), 404)
    assert_refused(script.http.delete("/v1/files/none"), 404)
    assert_refused(script.http.get("/v1/files?limit=0"), 400, "limit")
    assert_refused(script.http.get("/v1/batches?limit=x"), 400, "limit")


@pytest.mark.parametrize(
    ("request_fields", "status", "param"),
    [
        ({"json": {}}, 415, None),
        ({"files": {"file": b"x"}, "data": {"purpose": "vision"}}, 400, "purpose"),
        ({"files": {"file": b"x"}}, 400, "purpose"),
        ({"files": {"nofile": b"x"}, "data": {"purpose": "batch"}}, 400, "file"),
        ({"content": b"nonsense", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, None),
        ({"content": b"nonsense", "headers": {"content-type": "multipart/form-data"}}, 400, None),
        (
            {"files": {"file": b"x"}, "data": {"purpose": "batch", "expires_after[seconds]": "5"}},
            400,
            "expires_after.seconds",
        ),
    ],
)
def test_bad_uploads_are_refused(script: World, request_fields: Any, status: int, param: str | None) -> None:
    assert_refused(script.http.post("/v1/files", **request_fields), status, param)


def test_sizes_are_bounded(script_folder: Path) -> None:
    server = ServerConfig(disable_log_stats=True, max_file_bytes=1000, max_files_bytes=1500)
    with serve_app(script_folder, server) as world:

        def upload(size: int) -> Any:
            return world.http.post("/v1/files", files={"file": b"x" * size}, data={"purpose": "batch"})

        assert_refused(upload(1001), 413)
        assert_refused(upload(200_000), 413)
        assert upload(1000).status_code == 200
        assert_refused(upload(600), 400, "file")
        assert upload(500).status_code == 200


def test_files_belong_to_the_key_that_uploaded_them(script_folder: Path) -> None:
    server = ServerConfig(api_key=("one", "two"), disable_log_stats=True)
    with serve_app(script_folder, server) as world, client_of(world, "one") as one, client_of(world, "two") as two:
        batch = run(one, jsonl(line("a")))
        assert batch.request_counts.completed == 1
        assert list(two.files.list()) == [] and list(two.batches.list()) == []
        for call in (two.files.content, two.files.delete):
            with pytest.raises(openai.NotFoundError):
                call(batch.output_file_id)
        with pytest.raises(openai.NotFoundError):
            two.batches.cancel(batch.id)


def slow_lines(count: int) -> bytes:
    return jsonl(*(line(f"line-{i}", max_tokens=400, ignore_eos=True, temperature=1, seed=i) for i in range(count)))


def test_a_cancelled_batch_keeps_what_is_answered(random_folder: Path) -> None:
    server = ServerConfig(disable_log_stats=True, batch_concurrency=2)
    with serve_app(random_folder, server) as world, client_of(world) as client:
        file = client.files.create(file=slow_lines(60), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        with pytest.raises(openai.BadRequestError, match="cancel"):
            client.files.delete(file.id)
        wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 2, 20)
        assert client.batches.cancel(batch.id).status == "cancelling"
        ended = finished(client, batch.id)
        assert ended.status == "cancelled" and 2 <= ended.request_counts.completed < 60
        assert len(answers(client, ended.output_file_id)) == ended.request_counts.completed
        assert client.batches.cancel(batch.id).status == "cancelled"
        world.wait_until_idle()


def test_a_restart_goes_on_with_the_lines_that_have_no_answer(random_folder: Path, tmp_path: Path) -> None:
    server = ServerConfig(disable_log_stats=True, files_dir=str(tmp_path / "files"), batch_concurrency=2)
    with serve_app(random_folder, server) as world, client_of(world) as client:
        file = client.files.create(file=slow_lines(12), purpose="batch")
        batch_id = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id
        wait_for(lambda: client.batches.retrieve(batch_id).request_counts.completed >= 2, 20)
    path = tmp_path / "files" / f"file-{batch_id}-output"
    before = path.read_bytes()
    path.write_bytes(before + b'{"id": "batch_req-1", "custom_id": "line-11", "resp')  # as a crash would leave it
    with serve_app(random_folder, server) as world, client_of(world) as client:
        batch = finished(client, batch_id)
        assert batch.status == "completed" and batch.request_counts.completed == 12
        assert path.read_bytes().startswith(before)
        after = answers(client, batch.output_file_id)
        one = {**json.loads(slow_lines(12).splitlines()[11])["body"]}
        content = world.ok(CHAT, **one)["choices"][0]["message"]["content"]
        assert after["line-11"]["response"]["body"]["choices"][0]["message"]["content"] == content


def test_what_is_not_reached_in_time_expires(script_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.server.routes.batches.WINDOW_S", 0)
    with serve_app(script_folder) as world, client_of(world) as client:
        batch = run(client, jsonl(line("a"), line("b")))
        assert batch.status == "expired" and batch.request_counts.failed == 2
        failed = answers(client, batch.error_file_id)
        assert {each["error"]["code"] for each in failed.values()} == {"batch_expired"}
        assert all(each["response"] is None for each in failed.values())


def test_interactive_requests_come_first(random_folder: Path) -> None:
    """With every seat wanted by a batch, a chat waits for no line that has not begun."""
    server = ServerConfig(disable_log_stats=True, batch_concurrency=8)
    with serve_app(random_folder, server, max_num_seqs=2) as world, client_of(world) as client:
        file = client.files.create(file=slow_lines(40), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        wait_for(lambda: world.gauge("num_requests_waiting") >= 4)
        before = client.batches.retrieve(batch.id).request_counts.completed
        start = time.monotonic()
        world.chat(max_tokens=1)
        waited = time.monotonic() - start
        assert client.batches.retrieve(batch.id).request_counts.completed - before <= 3, waited
        client.batches.cancel(batch.id)
        finished(client, batch.id)


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path), 1, 1)
    with pytest.raises(ConfigError, match="in use"):
        FileStore(str(tmp_path), 1, 1)
    store.close()
    FileStore(str(tmp_path), 1, 1).close()


def test_answers_of_a_cut_file_count_up_to_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    path.write_bytes(b'{"custom_id":"a"}\n{"custom_id":"b"}\n{"custom')
    answers = AnswerFile(path)
    assert answers.answered == {"a", "b"}
    answers.append("c", b'{"custom_id":"c"}\n')
    answers.close()
    assert path.read_bytes() == b'{"custom_id":"a"}\n{"custom_id":"b"}\n{"custom_id":"c"}\n'


def test_batches_progress_side_by_side_and_share_the_lines(random_folder: Path) -> None:
    server = ServerConfig(disable_log_stats=True, batch_concurrency=2)
    with serve_app(random_folder, server, max_num_seqs=8) as world, client_of(world) as client:
        content = jsonl(*(line(str(i), max_tokens=40, ignore_eos=True) for i in range(60)))
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batches = [
            client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h") for _ in range(3)
        ]
        short = run(client, jsonl(line("one", max_tokens=2)))
        assert short.status == "completed" and world.gauge("num_requests_running") <= 2
        counts = [client.batches.retrieve(batch.id).request_counts for batch in batches]
        assert all(each is not None and 0 < each.completed < 60 for each in counts), counts
        client.batches.cancel(batches[0].id)
        assert finished(client, batches[0].id).status == "cancelled"
        assert finished(client, batches[1].id).request_counts.completed == 60
        assert finished(client, batches[2].id).request_counts.completed == 60


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/files"])
def test_a_page_after_what_is_not_there_is_refused(script: World, path: str) -> None:
    error = assert_refused(script.http.get(path, params={"after": "nothing-there"}), 404, "after")
    assert "'nothing-there'" in error["message"]
