"""The sampling that a model's files recommend, for the fields that a request leaves out.

The first source that recommends anything is used, and used whole: a mixture of two is what neither author tried.

    1. generation_config.json, in the folder or next to the .gguf file
    2. general.sampling.* in the .gguf file, where llama.cpp's converter puts that file's values
    3. the catalogue, for its models (gradus.loading.fetch.catalogue)
    4. for any other .gguf file, llama.cpp's own defaults: most such files recommend nothing, and their small,
       quantized models ramble where their whole distribution is sampled

A server's options precede them, and a request's own fields precede the options (gradus.server.config).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradus.engine.request import SamplingParams
from gradus.errors import RequestError
from gradus.loading.json_file import read_object_if_there

log = logging.getLogger(__name__)

NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""The fields of SamplingParams that a model's authors recommend values for."""

FILE = "generation_config.json"

IN_GGUF = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""Our names → llama.cpp's keys."""


@dataclass(frozen=True)
class Recommended:
    """values: by the names of SamplingParams. source: where they come from, in words; "" without any."""

    values: Mapping[str, float] = field(default_factory=dict)
    source: str = ""


LLAMA_CPP = Recommended(
    {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.05}, "llama.cpp's defaults: the file recommends none"
)


def of_folder(folder: Path) -> Recommended:
    """Read generation_config.json; nothing is recommended without it. Raises CheckpointError if it is not JSON."""
    return Recommended(_usable(read_object_if_there(folder / FILE), FILE), FILE)


def of_gguf(path: Path, metadata: Mapping[str, Any], catalogue: Recommended | None = None) -> Recommended:
    """Choose what applies to a .gguf file. catalogue: its entry's; None: the file is not the catalogue's."""
    stored = {name: metadata[key] for name, key in IN_GGUF.items() if key in metadata}
    # float32 in the file: 0.95 is 0.949999988 there
    stored = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in stored.items()}
    found = (
        of_folder(path.parent),
        Recommended(_usable(stored, path.name), "the .gguf file's metadata"),
        catalogue or LLAMA_CPP,
    )
    return next(each for each in found if each.values or each is found[-1])


def _usable(values: Mapping[str, Any], label: str) -> dict[str, float]:
    """Leave out, with a warning, values that no request could have: they concern only requests that name none."""
    found = {}
    for name in NAMES:
        if (value := values.get(name)) is None:
            continue
        try:
            SamplingParams(**{name: value})
        except RequestError as error:
            log.warning("%s: %s; the value is not used", label, error)
        else:
            found[name] = value
    return found


def in_words(values: Mapping[str, float], sources: Mapping[str, str]) -> str:
    """Write values with where they come from: "temperature 0.2, top_p 0.9 (its card)"."""
    by_source: dict[str, list[str]] = {}
    for name, value in values.items():
        by_source.setdefault(sources[name], []).append(f"{name} {value:g}")
    return "; ".join(f"{', '.join(each)} ({source})" for source, each in by_source.items())
