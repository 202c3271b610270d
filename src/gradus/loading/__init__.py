"""From a name to a model: find the checkpoint, check it, read its configuration, tokenizer and weights.

`open_checkpoint(name)` reads headers only; `load_model(checkpoint, …)` then reads the weights, all or nothing. Read
checkpoint.py first; then folder.py and safetensors.py (Hugging Face's layout), gguf.py and its two companions
(llama.cpp's), tokenizer.py and chat.py (text), catalogue.py and packages.py (models carried by packages), hub.py.

Files of a model are data from strangers. Every number in them is checked before it is used, nothing is unpickled,
nothing is executed, and whatever is wrong ends in one line that names the file. The names below are looked up when
first used (PEP 562), so that `import gradus.loading` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradus.loading.catalogue import CATALOGUE, Entry, cache_folder, entries
    from gradus.loading.checkpoint import Checkpoint, load_model, open_checkpoint
    from gradus.loading.packages import pull
    from gradus.loading.progress import Progress
    from gradus.loading.tokenizer import Tokenizer

_HOMES = {
    "CATALOGUE": "catalogue",
    "Checkpoint": "checkpoint",
    "Entry": "catalogue",
    "Progress": "progress",
    "Tokenizer": "tokenizer",
    "cache_folder": "catalogue",
    "entries": "catalogue",
    "load_model": "checkpoint",
    "open_checkpoint": "checkpoint",
    "pull": "packages",
}

__all__ = [
    "CATALOGUE",
    "Checkpoint",
    "Entry",
    "Progress",
    "Tokenizer",
    "cache_folder",
    "entries",
    "load_model",
    "open_checkpoint",
    "pull",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
