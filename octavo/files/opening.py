"""Opening a weight file read-only, and naming what stands in its place after a failed download. No formats here."""

import mmap
import os
from pathlib import Path

from octavo.errors import ModelError


def map_file(path: str | os.PathLike[str]) -> mmap.mmap:
    """Map a whole file read-only; nothing is read until it is touched.

    Raises:
        ModelError: the file is missing, unreadable, empty or not a regular file.
    """
    target = Path(path)
    if target.is_dir():
        raise ModelError(f"{path} is a folder where a weight file is expected")
    if target.exists() and not target.is_file():
        raise ModelError(f"{path} is a device or pipe where a weight file is expected")
    try:
        with target.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as err:
        raise ModelError(f"{path} does not exist; check the path") from err
    except ValueError as err:  # mmap refuses an empty file
        raise ModelError(f"{path} is empty; download it again") from err
    except OSError as err:
        raise ModelError(f"{path} cannot be read: {err.strerror or err}") from err


def describe_intruder(head: bytes) -> str | None:
    """What a file that starts with `head` is, when it is a usual stand-in for a failed download; else None."""
    text = head[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "an HTML page (an error page saved under this name, most likely)"
    if text.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer (run `git lfs pull`)"
    return None
