"""Models by hub id, `org/name`: downloaded once by the `huggingface_hub` library, then a folder like any other.

The library's settings apply: HF_ENDPOINT (a mirror), HF_HUB_OFFLINE, HF_HOME (its cache), HF_TOKEN (gated models). Only
JSON, templates and safetensors are requested: a pickled file never reaches the disk.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.utils.tqdm import tqdm

from gradus.errors import CheckpointError
from gradus.loading.progress import Progress, Silent

FILES = ["*.json", "*.safetensors", "merges.txt", "tokenizer.model"]
WANTED = [*FILES, "*.jinja"]  # named templates are in a folder: additional_chat_templates
UNWANTED = [*(f"*/{name}" for name in FILES), "consolidated*"]  # other variants of the same weights
REACH_SECONDS = 5.0  # the hub's time to answer before another source is tried


def is_hub_id(name: str) -> bool:
    return re.fullmatch(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", name) is not None and ".." not in name


def cached(repository: str, name: str) -> Path | None:
    """One file of a repository in the hub's cache, if it is there. Nothing is downloaded."""
    found = huggingface_hub.try_to_load_from_cache(repository, name)
    return Path(found) if isinstance(found, str) else None


def download(repository: str, *, progress: Progress | None = None) -> Path:
    """Download a model's files unless they are in the cache. Returns their folder. Raises CheckpointError in one
    line."""
    progress = progress or Silent()
    progress.begin(f"fetching {repository} from the hub", None)
    with _explaining(repository):
        folder = huggingface_hub.snapshot_download(
            repository, allow_patterns=WANTED, ignore_patterns=UNWANTED, tqdm_class=_reporting_to(progress)
        )
    return Path(folder)


def fetch(repository: str, name: str, folder: Path, progress: Progress) -> Path:
    """Download one file of a repository into `folder`. Raises CheckpointError in one line.

    Without a network it fails within seconds; the library alone would retry for half a minute.
    """
    with _explaining(repository):
        try:
            huggingface_hub.get_session().head(huggingface_hub.hf_hub_url(repository, name), timeout=REACH_SECONDS)
        except Exception as error:  # from any HTTP client that the library may use
            raise errors.LocalEntryNotFoundError("not reached") from error
        huggingface_hub.snapshot_download(
            repository, allow_patterns=[name], local_dir=folder, tqdm_class=_reporting_to(progress)
        )
    if not (folder / name).is_file():
        raise CheckpointError(f"{repository}: cannot be had from the hub: it has no {name}")
    return folder / name


@contextmanager
def _explaining(repository: str) -> Iterator[None]:
    """Turn the library's errors into one line."""
    try:
        yield
    except errors.GatedRepoError as error:
        _refuse(repository, "its owners ask for consent first: accept the terms on its page, then set HF_TOKEN", error)
    except errors.RepositoryNotFoundError as error:
        _refuse(repository, "the hub has no such model, or only for some accounts (HF_TOKEN)", error)
    except errors.LocalEntryNotFoundError as error:
        _refuse(
            repository,
            "it is not in the hub's cache, and the hub cannot be reached (is HF_HUB_OFFLINE or HF_ENDPOINT set?)",
            error,
        )
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "an error")
        _refuse(repository, f"the hub answered {status}", error)
    except Exception as error:  # connections, full disks: any other error ends this download
        _refuse(repository, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}", error)


def _refuse(repository: str, problem: str, error: Exception) -> NoReturn:
    raise CheckpointError(f"{repository}: cannot be had from the hub: {problem}") from error


def _reporting_to(progress: Progress) -> type[tqdm]:
    """Make a progress bar class for the library that draws nothing, and reports the bytes received."""
    lock = threading.Lock()  # files are downloaded in parallel
    most = 0

    class Bar(tqdm):
        """One of the library's several bars over the same bytes (received, written). The furthest one counts."""

        def __init__(self, *args: Any, **settings: Any) -> None:
            self.counts_bytes = settings.get("unit") == "B"
            self.done = 0
            super().__init__(*args, **settings | {"disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal most
            with lock:
                self.done += int(n or 0)
                if self.counts_bytes and self.done > most:
                    progress.advance(self.done - most)
                    most = self.done
            return None

    return Bar
