"""From a name to a model: find the checkpoint, check it, read its configuration, tokenizer and weights.

`open_checkpoint(name)` reads headers only; `load_model(checkpoint, …)` then reads the weights, all or nothing.
`open_tokenizer(name)` needs no torch. Read in this order:

    checkpoint.py      a name to a checkpoint, a checkpoint to a model
    folder.py          Hugging Face's layout;  added_tokens.py: tokens in its other files;  safetensors.py: its tensors;
                       small_files.py: everything else in it
    quantized/         matrices that others have quantized
    gguf/              llama.cpp's file
    llama2c.py         llama2.c's file
    tokenizer.py       text to token ids and back;  chat.py: a conversation as a prompt;  templates.py: which one
    sandbox/           a chat template as a program that is not trusted
    default_sampling.py    how a model is sampled where a request does not say
    fetch/             models by name and by hub id, and how they get here
    fingerprint.py     text that differs for other weights
    json_file.py       JSON from strangers;  quoting.py: their values in our messages
    progress.py        how long work is reported

A model's files are untrusted. Every number in them is checked before it is used, nothing is unpickled,
nothing is executed, and every fault ends in one line that names the file. The names below are looked up at
first use (PEP 562), so that `import gradus.loading` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradus.loading.checkpoint import Checkpoint, as_asked, load_model, model_name, open_checkpoint, open_tokenizer
    from gradus.loading.fetch.catalogue import CATALOGUE, Entry, cache_folder, entries
    from gradus.loading.fetch.packages import pull
    from gradus.loading.progress import Progress
    from gradus.loading.tokenizer import Tokenizer

_HOMES = {
    "CATALOGUE": "fetch.catalogue",
    "Checkpoint": "checkpoint",
    "Entry": "fetch.catalogue",
    "Progress": "progress",
    "Tokenizer": "tokenizer",
    "as_asked": "checkpoint",
    "cache_folder": "fetch.catalogue",
    "entries": "fetch.catalogue",
    "load_model": "checkpoint",
    "model_name": "checkpoint",
    "open_checkpoint": "checkpoint",
    "open_tokenizer": "checkpoint",
    "pull": "fetch.packages",
}

__all__ = [
    "CATALOGUE",
    "Checkpoint",
    "Entry",
    "Progress",
    "Tokenizer",
    "as_asked",
    "cache_folder",
    "entries",
    "load_model",
    "model_name",
    "open_checkpoint",
    "open_tokenizer",
    "pull",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
