"""docs/clients.md as a program: its blocks install clients, write their files and run them.

A block whose language is followed by `client=NAME` belongs to that client:

    console client=NAME install      pip and npm packages
    LANGUAGE client=NAME file=PATH   a file to write, below the client's home
    python client=NAME               a program
    console client=NAME              commands, as a user gives them
"""

import re
import shlex
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "clients.md"
ADDRESS = "http://127.0.0.1:8000"

BLOCK = re.compile(r"^```(\w+) ([^\n]*\bclient=[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL = re.compile(r"(pip|npm) install (?:-g )?(.+)")


@dataclass
class Client:
    """pip, npm: packages to install. files: to write before anything runs, by their path. runs: commands and programs,
    in the page's order, as (language, text)."""

    name: str
    pip: list[str] = field(default_factory=list)
    npm: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    runs: list[tuple[str, str]] = field(default_factory=list)


def read(text: str | None = None) -> dict[str, Client]:
    """The clients of the page, by name. Raises ValueError for a block that nothing would run."""
    found: defaultdict[str, Client] = defaultdict(lambda: Client(""))
    for language, marks, content in BLOCK.findall(PAGE.read_text(encoding="utf-8") if text is None else text):
        options = dict(mark.partition("=")[::2] for mark in marks.split())
        client = found[options["client"]]
        client.name = options["client"]
        if "install" in options:
            for line in commands(content):
                kind, packages = INSTALL.fullmatch(line).groups()
                getattr(client, kind).extend(shlex.split(packages))
        elif "file" in options:
            client.files[options["file"].removeprefix("~/")] = content
        elif language in ("python", "console"):
            client.runs.append((language, content))
        else:
            raise ValueError(f"{client.name}: nothing runs a block of {language}")
    return dict(found)


def commands(text: str) -> list[str]:
    """The commands of a console: lines behind a prompt, each joined with those that continue it."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    return [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith("$ ")]
