"""Fetching by URL: what may be asked, what is refused, and that the checked address is the one that is asked."""

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from octavo.errors import ClientError
from octavo.files.fetch import Fetched, Fetcher, is_public

Handle = Callable[[BaseHTTPRequestHandler], None]


def anything(_: object) -> bool:
    return True


@contextmanager
def web(handle: Handle) -> Iterator[int]:
    """A web server on loopback; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            handle(self)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def answer(body: bytes = b"hello", status: int = 200, **headers: str) -> Handle:
    def handle(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)

    return handle


def fetch(url: str, *allowed_domains: str, **options: Any) -> Fetched:
    return asyncio.run(Fetcher(allowed_domains, **options).fetch(url, param="input"))


def refusal(url: str, *allowed_domains: str, **options: Any) -> str:
    with pytest.raises(ClientError) as caught:
        fetch(url, *allowed_domains, **options)
    assert caught.value.param == "input"
    return caught.value.message


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2001:4860:4860::8888"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
     "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1", "::", "::1", "::127.0.0.1",
     "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001:0:7f00:1::",
     "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "100::1", "2001:db8::1"],
)  # fmt: skip
def test_all_other_addresses_are_not(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "[::1]", "[::ffff:127.0.0.1]", "0"],
)
def test_no_spelling_of_loopback_is_asked(host: str) -> None:
    with web(lambda _: pytest.fail("the server was asked")) as port:
        message = refusal(f"http://{host}:{port}/")
    assert "public internet" in message or "not a URL" in message or "no address" in message


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://example.com/x", "gopher://example.com/", "data:text/plain,hi", "/etc/passwd", "x", "",
     "http://", "http:///x", "javascript:alert(1)", "http://user:secret@example.com/", "http://[::1",
     "https://exa mple/"],
)  # fmt: skip
def test_what_is_no_web_address_is_refused_without_asking_anybody(url: str) -> None:
    assert "secret" not in refusal(url)


def test_a_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def two(*_: Any, **__: Any) -> Any:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("8.8.8.8", 80)), (*kind, ("10.0.0.1", 80))]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", two)
    assert "public internet" in refusal("http://two.example/")


def test_the_checked_address_is_asked_by_the_name_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    async def once(_: Any, host: str, port: int, **__: Any) -> Any:
        names.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    def handle(request: BaseHTTPRequestHandler) -> None:
        answer(request.headers["Host"].encode(), Content_Type="text/x")(request)

    with web(handle) as port:
        monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", once)
        url = f"http://some.example:{port}/a?b=c"
        assert fetch(url, allows=anything) == (f"some.example:{port}".encode(), "text/x")
    assert names[0] == "some.example" and set(names[1:]) <= {"127.0.0.1"}


def test_only_allowed_domains_and_their_subdomains_are_asked() -> None:
    for url in ("http://evil.example/", "http://notgood.example/", "http://good.example.evil.example/"):
        assert "--allowed-media-domains" in refusal(url, "good.example")
    assert "no address" in refusal("http://a.good.invalid/", "Good.invalid")


def test_redirects_errors_and_compression_are_refused() -> None:
    with web(answer(status=302, Location="http://169.254.169.254/")) as port:
        assert "redirects" in refusal(f"http://127.0.0.1:{port}/", allows=anything)
    with web(answer(status=404)) as port:
        assert "404" in refusal(f"http://127.0.0.1:{port}/x?token=secret", allows=anything)
    with web(answer(Content_Encoding="gzip")) as port:
        assert "compressed" in refusal(f"http://127.0.0.1:{port}/", allows=anything)


def test_size_and_time_are_bounded() -> None:
    with web(answer(b"x" * 100)) as port:
        assert fetch(f"http://127.0.0.1:{port}/", allows=anything, max_bytes=100).content == b"x" * 100
        assert "99 bytes" in refusal(f"http://127.0.0.1:{port}/", allows=anything, max_bytes=99)

    def slow(request: BaseHTTPRequestHandler) -> None:  # each byte comes in time, all of them do not
        request.send_response(200)
        request.end_headers()
        for _ in range(10):
            try:
                request.wfile.write(b"x")
            except OSError:
                return
            time.sleep(0.05)

    with web(slow) as port:
        assert "0.2 s" in refusal(f"http://127.0.0.1:{port}/", allows=anything, timeout_s=0.2)


def test_nobody_listening_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert "cannot be read" in refusal(f"http://127.0.0.1:{port}/", allows=anything)
