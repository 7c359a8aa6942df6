"""A Hugging Face hub on loopback, as far as its client asks for it: repositories made of bytes, one commit each."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """What the server knows, and what was asked.

    Attributes:
        repos: repository -> file -> content.
        gated: repositories that answer 403.
        downloads: "repo/file" of every body that was sent.
    """

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.downloads: list[str] = []
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator["FakeHub"]:
        """Answer on a free port until the block ends."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def log_message(self, *args: object) -> None:
            pass

        def answer(self, with_body: bool) -> None:
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                self.api("/".join(parts[2:4]), parts[4:])
            else:
                self.file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), with_body)

        def api(self, repo: str, rest: list[str]) -> None:
            files = self.found(repo, rest[1] if len(rest) > 1 else "main")
            if files is None:
                return
            if rest[:1] == ["tree"]:
                entries = [
                    {"type": "file", "path": name, "size": len(content), "oid": _etag(content)}
                    for name, content in files.items()
                ]
                self.reply(200, json.dumps(entries).encode())
            else:
                siblings = [{"rfilename": name} for name in files]
                self.reply(200, json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode())

        def file(self, repo: str, revision: str, name: str, with_body: bool) -> None:
            files = self.found(repo, revision)
            if files is None:
                return
            if name not in files:
                self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            if with_body:
                hub.downloads.append(f"{repo}/{name}")
            content = files[name]
            self.reply(200, content, {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": COMMIT}, with_body)

        def found(self, repo: str, revision: str) -> dict[str, bytes] | None:
            if repo in hub.gated:
                self.reply(403, b"", {"X-Error-Code": "GatedRepo"})
            elif repo not in hub.repos:
                self.reply(401, b"", {"X-Error-Code": "RepoNotFound"})
            elif revision not in ("main", COMMIT):
                self.reply(404, b"", {"X-Error-Code": "RevisionNotFound"})
            else:
                return hub.repos[repo]
            return None

        def reply(
            self, status: int, body: bytes, headers: dict[str, str] | None = None, with_body: bool = True
        ) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body and self.command != "HEAD":
                self.wfile.write(body)

    return Handler


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
