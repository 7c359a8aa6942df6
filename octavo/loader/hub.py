"""Models from the Hugging Face hub, through its own client: its cache, token, `HF_ENDPOINT` and `HF_HUB_OFFLINE`."""

import re
from typing import Any, NamedTuple

from octavo.errors import ModelError
from octavo.messages import Progress

_REFERENCE = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?::(?P<file>[\w./ -]+\.gguf))?")
_FOLDER_FILES = ["*.json", "*.jinja", "merges.txt", "tokenizer.model"]
_NOT_NEEDED = ["*/*", "consolidated*"]  # other frameworks' copies live in sub-folders


class HubReference(NamedTuple):
    """A repository, and the one GGUF file of it that is meant."""

    repo: str
    file: str | None


def parse_hub_reference(reference: str) -> HubReference | None:
    """`org/name` or `org/name:file.gguf`; None for anything else."""
    match = _REFERENCE.fullmatch(reference)
    return HubReference(match["repo"], match["file"]) if match else None


def fetch(
    reference: HubReference,
    *,
    revision: str | None = None,
    download_dir: str | None = None,
    weights: bool = True,
    progress: Progress | None = None,
) -> str:
    """Path on this machine of a repository's snapshot folder, or of its one GGUF file; downloads what is not cached.

    Args:
        weights: False leaves the safetensors files out (a tokenizer is wanted).

    Raises:
        ModelError: no such repository, revision or file, no access, or offline and not cached; says which.
    """
    import httpx  # noqa: PLC0415 (both are 0.1 s to import, and most starts need neither)
    from huggingface_hub import errors, hf_hub_download, snapshot_download  # noqa: PLC0415

    common: Any = {"revision": revision, "cache_dir": download_dir, "tqdm_class": _bar_class(reference.repo, progress)}
    try:
        if reference.file is not None:
            return str(hf_hub_download(reference.repo, reference.file, **common))
        patterns = [*_FOLDER_FILES, "*.safetensors"] if weights else _FOLDER_FILES
        return str(snapshot_download(reference.repo, allow_patterns=patterns, ignore_patterns=_NOT_NEEDED, **common))
    except errors.LocalEntryNotFoundError as err:
        raise ModelError(
            f"{_name(reference)} is not in the hub cache and cannot be downloaded: this machine is offline, or"
            " HF_HUB_OFFLINE is set; connect, or give a folder or a .gguf file"
        ) from err
    except errors.GatedRepoError as err:
        raise ModelError(
            f"{reference.repo} is gated: accept its terms on its hub page, then set HF_TOKEN or run `hf auth login`"
        ) from err
    except errors.RevisionNotFoundError as err:
        raise ModelError(f"{reference.repo} has no revision {revision!r}") from err
    except errors.EntryNotFoundError as err:
        raise ModelError(f"{reference.repo} has no file {reference.file!r}") from err
    except errors.RepositoryNotFoundError as err:
        raise ModelError(
            f"{reference.repo!r} is neither a local path nor a repository on the hub; check the spelling, or set"
            " HF_TOKEN if it is private"
        ) from err
    except (errors.HfHubHTTPError, errors.HFValidationError, httpx.HTTPError, OSError) as err:
        raise ModelError(f"{_name(reference)} could not be fetched from the hub: {err}") from err


def _name(reference: HubReference) -> str:
    return reference.repo if reference.file is None else f"{reference.repo}:{reference.file}"


def _bar_class(repo: str, progress: Progress | None) -> type:
    """A bar for the hub client that draws nothing and tells `progress` the bytes."""
    from tqdm.auto import tqdm  # noqa: PLC0415 (comes with huggingface_hub, and only it needs it)

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: object, **options: object) -> None:
            # The client's second byte bar, "Downloading bytes", counts the same bytes before they are unpacked.
            self.counted = options.get("unit") == "B" and options.get("desc") != "Downloading bytes"
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if progress is not None and self.counted:
                progress(f"downloading {repo}", int(self.n), int(self.total or 0))

    return Bar
