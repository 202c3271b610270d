"""Recorded traces: a JSON object per line, which says when a request came and how long it and its answer were.

Each line has an arrival (`at`, seconds, or `timestamp`, milliseconds as in Mooncake's traces), a prompt (`prompt`: a
text or token ids; or `input_length`, for random ids), and `output_length` (or `max_tokens`). Prompts that began
alike in the recorded system do so again: `prefix_id` with `prefix_length` names a shared beginning, and `hash_ids`
(Mooncake, Qin et al. 2024) names each block of 512 tokens, so prompts whose lists begin alike share those blocks.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

from gradus.errors import ConfigError
from gradus.load.jobs.job import Job
from gradus.load.jobs.mix import random_ids

BLOCK = 512  # tokens per entry of hash_ids
MOST_TOKENS = 1_000_000


def read_trace(
    file: Path, vocab_size: int, *, most: int | None = None, speed: float = 1.0, seed: str = "0"
) -> list[Job]:
    """Read at most `most` jobs, in order of arrival, the first at 0. speed: 2 replays in half the time.

    Raises ConfigError with the line's number for one that is no request.
    """
    jobs = []
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    jobs.append(_job(line, f"{file}, line {number}", vocab_size, f"{seed} {number}", seed))
                if len(jobs) == most:
                    break
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not jobs:
        raise ConfigError(f"{file}: a trace has a JSON object per line, and this file has none")
    jobs.sort(key=lambda job: job.at)
    return [Job((job.at - jobs[0].at) / speed, job.prompt, job.output) for job in jobs]


def _job(line: str, where: str, vocab_size: int, own: str, shared: str) -> Job:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: must be a JSON object, got {type(row).__name__}")
    at = _number(row, where, "at") if "at" in row else _number(row, where, "timestamp") / 1000
    output = _count(row, where, "output_length" if "output_length" in row else "max_tokens")
    return Job(at, _prompt(row, where, vocab_size, own, shared), output)


def _prompt(row: dict[str, Any], where: str, vocab_size: int, own: str, shared: str) -> tuple[int, ...] | str:
    given = row.get("prompt")
    if isinstance(given, str) and given:
        return given
    if isinstance(given, list) and given and all(type(token) is int and token >= 0 for token in given):
        return tuple(given)
    if given is not None:
        raise ConfigError(f"{where}: prompt must be a text or a list of token ids, not empty")
    length = _count(row, where, "input_length")
    names: list[tuple[Any, int]] = [(block, BLOCK) for block in row.get("hash_ids") or ()]
    if row.get("prefix_id") is not None:
        names = [(f"prefix {row['prefix_id']}", _count(row, where, "prefix_length"))]
    ids: list[int] = []
    for name, size in names:
        ids += random_ids(Random(f"{shared} block {name}"), min(size, length - len(ids)), vocab_size)
    return (*ids, *random_ids(Random(f"{own} rest"), length - len(ids), vocab_size))


def _number(row: dict[str, Any], where: str, name: str) -> float:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise ConfigError(f"{where}: {name} must be a number from 0, got {str(value)[:40]}")
    return float(value)


def _count(row: dict[str, Any], where: str, name: str) -> int:
    value = row.get(name)
    if type(value) is not int or not 1 <= value <= MOST_TOKENS:
        raise ConfigError(f"{where}: {name} must be a whole number from 1 to {MOST_TOKENS:,}, got {str(value)[:40]}")
    return value
