"""The commands that the pages show, in the order in which a reader gives them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "phases").rglob("*.md")])
SHELL = re.compile(r"^```(?:console|bash)( [^\n]*)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINES = re.compile(r"^for .*?^done$|^[^\n]*$", re.MULTILINE | re.DOTALL)  # of a loop all of them
UNMARKED = re.compile(r"^```\n\$? ?(?:gradus|curl|pip|make|python3?) ", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """page: its path in the repository. text: without prompt and comment."""

    page: str
    text: str


def commands(page: Path) -> list[Command]:
    """List the commands of a page, except for those of clients, which `tests/clients` runs."""
    blocks = [text for marks, text in SHELL.findall(page.read_text(encoding="utf-8")) if "client=" not in marks]
    return [Command(str(page.relative_to(ROOT)), line) for block in blocks for line in lines(block)]


def lines(block: str) -> list[str]:
    """Read the commands of a block: each line or loop, or those behind a prompt if there is one. The rest is output."""
    joined = LINES.findall(re.sub(r"\s*\\\n\s*", " ", block))
    if any(line.startswith("$ ") for line in joined):
        joined = [line.removeprefix("$ ") for line in joined if line.startswith("$ ")]
    return [found for line in joined if (found := re.sub(r"\s+# .*", "", line).strip())]
