"""Output: results go to stdout, everything about them (progress, statistics, mistakes) to stderr."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradus.device.characters import plain
from gradus.errors import ConfigError, RequestError
from gradus.text.completion import Completion


def print_json(value: Any, *, lines: bool = False) -> None:
    """Print one JSON document; with `lines`, on one line, so that documents can follow each other."""
    print(json.dumps(value, indent=None if lines else 2), flush=True)


def print_text(text: str) -> None:
    """Print text at once. A terminal that lacks a character shows a substitute."""
    sys.stdout.write(plain(text, sys.stdout.encoding))
    sys.stdout.flush()


def standard_input() -> str:
    """Read all of standard input. Raises RequestError if it is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"prompt: standard input is not UTF-8 ({error.reason} at byte {error.start})", param="prompt"
        ) from error


def write_file(file: Path, text: str) -> None:
    """Write a file, and create its folders. Raises ConfigError if that is impossible."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from error


def print_note(text: str) -> None:
    """Print a dim line on stderr."""
    from rich.console import Console

    Console(stderr=True).print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def print_command(reason: str, command: str) -> None:
    """Print what to type next, and why. The command has its own line, so that it can be copied; "" prints none."""
    print(f"\n{reason}:\n  {command}" if command else f"\n{reason}")


def print_mistake(text: str) -> None:
    """Report a mistake in one line."""
    print(f"gradus: {' '.join(text.split())}", file=sys.stderr)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    console = Console(markup=False)
    for row in rows:
        table.add_row(*(plain(cell, console.encoding) for cell in row))  # as wide as it will be
    console.print(table)


def size(count: float) -> str:
    """Format bytes for people: 98.4 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def completion_json(completion: Completion) -> dict[str, Any]:
    return asdict(completion) | {
        "timings": asdict(completion.timings) | {"decode_tokens_per_s": completion.timings.decode_tokens_per_s}
    }


def statistics(completions: Sequence[Completion]) -> str:
    """Summarize a run in one line."""
    tokens = sum(len(completion.token_ids) for completion in completions)
    first = completions[0]
    cached = f" ({first.cached_tokens} cached)" if first.cached_tokens else ""
    parts = [f"{first.prompt_tokens} prompt tokens{cached}", f"{tokens} generated"]
    parts.append(", ".join(dict.fromkeys(_ending(completion) for completion in completions)))
    if first.timings.ttft_s is not None:
        parts.append(f"first token after {first.timings.ttft_s:.2f} s")
    speeds = [speed for completion in completions if (speed := completion.timings.decode_tokens_per_s)]
    if speeds:
        parts.append(f"{sum(speeds):.1f} tok/s")
    return " · ".join(parts)


def _ending(completion: Completion) -> str:
    match completion.finish_reason:
        case "stop" if isinstance(completion.stop_reason, str):
            return f"stopped at {completion.stop_reason!r}"
        case "stop":
            return "stopped by the model"
        case "length":
            return "stopped at the length limit"
        case reason:
            return f"{reason}: {completion.error}" if completion.error else reason
