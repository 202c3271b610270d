"""JSON from untrusted files: bounded in size, and every fault reported in one line."""

import json
from pathlib import Path
from typing import Any

from gradus.errors import CheckpointError

LARGEST_JSON = 1 << 28  # bytes; tokenizer.json reaches 40 MB


def read_text(path: Path) -> str:
    """Read a UTF-8 file of bounded size. Raises CheckpointError naming it."""
    try:
        size = path.stat().st_size
        if size > LARGEST_JSON:
            raise CheckpointError(f"{path.name}: {size} bytes, at most {LARGEST_JSON} are allowed")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path.name}: not UTF-8 (byte {error.start})") from error


def read_json(text: str | bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: not valid JSON: {str(error)[:120]}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object."""
    value = read_json(read_text(path), path.name)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path.name}: must be a JSON object, got {type(value).__name__}")
    return value


def read_object_if_there(path: Path) -> dict[str, Any]:
    """Read the object; an empty one if the file does not exist."""
    return read_object(path) if path.is_file() else {}
