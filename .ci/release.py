"""Print the notes of a release: the section of CHANGELOG.md that a tag names. Ends with one line if there is none.

    python .ci/release.py v0.1.0

The tag, the version in the code and the first section of CHANGELOG.md have to agree, and the section needs its date.
"""

import re
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECTION = re.compile(
    r"^## \[(?P<version>[^\]]+)\] - (?P<date>\S+)\n(?P<notes>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL
)


def version_of(root: Path) -> str:
    """The version in the code, read and not imported: a release is built where nothing is installed."""
    return re.search(r'^__version__ = "(.+)"$', (root / "src/gradus/__init__.py").read_text("utf-8"), re.MULTILINE)[1]


def notes(tag: str, root: Path = ROOT) -> str:
    """Return the section's text. Raises SystemExit with one line: what disagrees, and where to change it."""
    version = version_of(root)
    if tag != f"v{version}":
        sys.exit(f"release: src/gradus/__init__.py has version {version}, so the tag must be v{version}, got {tag}")
    first = SECTION.search((root / "CHANGELOG.md").read_text("utf-8"))
    if first is None or first["version"] != version:
        sys.exit(f"release: CHANGELOG.md must begin with the section '## [{version}] - YYYY-MM-DD'")
    if not is_date(first["date"]):
        sys.exit(f"release: the section {version} of CHANGELOG.md has no date: write '## [{version}] - YYYY-MM-DD'")
    if not first["notes"].strip():
        sys.exit(f"release: the section {version} of CHANGELOG.md is empty: say what has changed")
    return first["notes"].strip()


def is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("release: name the tag: python .ci/release.py v0.1.0")
    print(notes(sys.argv[1]))
