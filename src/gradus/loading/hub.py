"""Models by hub id, `org/name`: downloaded once by the `huggingface_hub` library, then a folder like any other.

Its own settings apply: HF_ENDPOINT (a mirror), HF_HUB_OFFLINE, HF_HOME (its cache), HF_TOKEN (gated models). Only JSON,
templates and safetensors are asked for: a pickled file does not even reach the disk.
"""

import re
import threading
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.utils.tqdm import tqdm

from gradus.errors import CheckpointError
from gradus.loading.progress import Progress, Silent

WANTED = ["*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model"]
UNWANTED = ["*/*", "consolidated*"]  # other variants of the same weights


def is_hub_id(name: str) -> bool:
    return re.fullmatch(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", name) is not None and ".." not in name


def download(repository: str, *, progress: Progress | None = None) -> Path:
    """The folder with a model's files, downloaded unless it is there. Raises CheckpointError in one line."""
    progress = progress or Silent()
    progress.begin(f"fetching {repository} from the hub", None)
    try:
        folder = huggingface_hub.snapshot_download(
            repository, allow_patterns=WANTED, ignore_patterns=UNWANTED, tqdm_class=_reporting_to(progress)
        )
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
    except Exception as error:  # connections, full disks: whatever the library lets through ends this download
        _refuse(repository, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}", error)
    return Path(folder)


def _refuse(repository: str, problem: str, error: Exception) -> NoReturn:
    raise CheckpointError(f"{repository}: cannot be had from the hub: {problem}") from error


def _reporting_to(progress: Progress) -> type[tqdm]:
    """A progress bar for the library that draws nothing, and passes on how many bytes have come."""
    lock = threading.Lock()  # files come in parallel
    most = 0

    class Bar(tqdm):
        """The library keeps several bars over the same bytes (received, written): the furthest one counts."""

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
