"""Output: results go to stdout, everything about them (progress, statistics, mistakes) to stderr."""

import errno
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from gradus.device.characters import plain
from gradus.errors import ConfigError, RequestError
from gradus.text.completion import Completion

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)  # of a file that is being written
CANNOT_MAP = re.compile("failed to map segment|cannot allocate memory|mmap", re.IGNORECASE)


def print_json(value: Any, *, lines: bool = False) -> None:
    """Print one JSON document; with `lines`, on one line, so that documents can follow each other."""
    print(json.dumps(value, indent=None if lines else 2), flush=True)


def print_text(text: str) -> None:
    """Print text at once. A terminal that lacks a character shows a substitute."""
    if sys.stdout is not None:  # it is None where the program was started with it closed
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
    """Print a dim line on stderr. A note that cannot be written, as on a full disk, ends nothing."""
    from rich.console import Console

    with suppress(OSError):
        Console(stderr=True).print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def print_command(reason: str, command: str) -> None:
    """Print what to type next, and why. The command has its own line, so that it can be copied; "" prints none."""
    print(f"\n{reason}:\n  {command}" if command else f"\n{reason}")


def print_mistake(text: str) -> None:
    """Report a mistake in one line, if stderr can be written. The exit code reports it in any case."""
    with suppress(OSError):
        print(f"gradus: {' '.join(text.split())}", file=sys.stderr, flush=True)


def flush_stdout() -> None:
    """Flush stdout. Raises OSError."""
    if sys.stdout is not None:
        sys.stdout.flush()


def give_up(stream: TextIO | None) -> None:
    """Drop a stream's unwritten text. Otherwise the interpreter tries again at its end, and reports the failure."""
    with suppress(OSError, ValueError, AttributeError):  # a program may have replaced the stream
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())  # type: ignore[union-attr]
        os.close(nothing)


def lack_of(error: BaseException) -> str | None:
    """Explain an error that only shows what the machine lacks: memory, or room on a disk. None for any other."""
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and CANNOT_MAP.search(str(error))):
        what = str(error) or "an allocation failed"
        return f"not enough memory ({what}); is there a limit? `ulimit -v` shows it"
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        where = "output" if error.filename is None else error.filename
        return f"{where} cannot be written: {error.strerror}"
    return None


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
