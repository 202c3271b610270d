"""Calls as models write them, from the table of docs/tools.md: what the page says is what is read."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from tests.text.tools.builders import FAMILIES, family

PAGE = Path(__file__).parents[3] / "docs" / "tools.md"

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "now": {"type": "boolean"}, "days": {"type": "array"}},
}
WEATHER = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]

# formats that write a call as a JSON object with all its members
JSON = tuple(name for name in FAMILIES if '"$name"' in family(name).format.layout.call)


class Loose(NamedTuple):
    """A call. text: without the markers around it. formats: those that read it."""

    what: str
    text: str
    arguments: dict[str, Any]
    formats: tuple[str, ...]

    def within(self, name: str) -> str:
        """Write it as an answer of a format."""
        if name == "qwen2.5-coder":  # without its tags
            return self.text
        written = family(name).format.layout.write([("here", {})])
        return re.sub(r'\{"name": "here", "\w+": \{\}\}', lambda _: self.text, written)


def _rows() -> list[Loose]:
    section = PAGE.read_text(encoding="utf-8").split("## What is read as a call\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    return [
        Loose(
            what,
            written.removeprefix("`").removesuffix("`").strip(),
            json.loads(arguments.strip("` ")),
            JSON if formats == "JSON" else tuple(re.findall(r"`([\w.-]+)`", formats)),
        )
        for what, written, arguments, formats in rows
    ]


LOOSE = _rows()
