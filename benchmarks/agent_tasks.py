"""Ten small tasks for coding agents, each judged by what is on disk afterwards.

A task is a folder's files, an instruction, and a judge. The judge sees the folder, never the answer alone: where an
answer counts, the command it reports on must have left its trace as well. Commands that a task names are scripts that
leave a file behind; checks of code are run from a copy of the judge's own.
"""

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AS_NOBODY: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
"""Options of `subprocess` that run a model's code without root's rights."""

Judge = Callable[[Path, str], bool]
"""Judges a folder, and the text of the session's last answer."""


@dataclass(frozen=True)
class Task:
    """files: texts by path. trace: if the instruction spells out the one command to run, the file that it leaves."""

    name: str
    instruction: str
    files: Mapping[str, str]
    judge: Judge
    trace: str | None = None

    def command_ran(self, folder: Path) -> bool | None:
        """Whether the command that the instruction spells out has left its trace; None if it spells out none."""
        return None if self.trace is None else text(folder, self.trace) != ""

    def lay_out(self, folder: Path) -> None:
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def text(folder: Path, name: str) -> str:
    """The text of a file, without the blanks around it; "" if there is no such file."""
    path = folder / name
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else ""


def holds(name: str, expected: str) -> Judge:
    return lambda folder, _: text(folder, name) == expected


def passes(folder: Path, check: str) -> bool:
    """Run a check in Python within the folder, for ten seconds at most."""
    command, path = ["python3", "-B", "-c", check], {"PATH": "/usr/bin:/bin"}
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=10, env=path, **AS_NOBODY)
        return done.returncode == 0
    return False


# -- what lies in the folders --------------------------------------------------------------------------------------

STAMP = "echo stamped > stamp.txt\necho 'the stamp was written'\n"

PRICES = "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a + b\n"
PRICES_TESTS = """\
import unittest

from prices import add, subtract


def setUpModule():
    with open("tests.log", "a") as log:
        log.write("the tests ran")


class PricesTest(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 3), 5)

    def test_subtract(self):
        self.assertEqual(subtract(5, 3), 2)
"""

SUMS = '''\
def sum_to(n):
    """Return 1 + 2 + ... + n."""
    total = 0
    for number in range(1, n):
        total = total + number
    return total
'''
SUMS_CHECK = "from sums import sum_to; assert [sum_to(n) for n in (0, 1, 4, 10)] == [0, 1, 10, 55]"

NOTES = {
    "notes/april.txt": "The swallows are back. Rain all week.\n",
    "notes/may.txt": "A heron stood in the pond this morning.\n",
    "notes/june.txt": "Cut the grass. The ducks have seven young.\n",
}
SETTINGS = "[server]\nhost = 127.0.0.1\nport = 8471\n\n[log]\nlevel = info\n"
PEOPLE = ("Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal")
NAMES = "".join(f"{name},{age}\n" for age in (31, 47, 58) for name in PEOPLE)
LETTER = "My favourite colour is green.\nThe colour of the sea is grey.\n"

TASKS = (
    Task(
        "command",
        "Run this command: sh stamp.sh",
        {"stamp.sh": STAMP},
        holds("stamp.txt", "stamped"),
        trace="stamp.txt",
    ),
    Task(
        "tests",
        "Run the tests with this command and tell me which test fails: python3 -m unittest",
        {"prices.py": PRICES, "test_prices.py": PRICES_TESTS},
        lambda folder, said: text(folder, "tests.log") != "" and "test_subtract" in said,
        trace="tests.log",
    ),
    Task(
        "build",
        "Run this command: python3 build.py --out result.txt --level 3",
        {"build.py": "import sys\n\nopen(sys.argv[2], 'w').write('level ' + sys.argv[4])\nprint('built')\n"},
        holds("result.txt", "level 3"),
        trace="result.txt",
    ),
    Task(
        "word",
        "One file in the folder notes contains the word heron. Write the name of that file into found.txt.",
        NOTES,
        lambda folder, _: "may.txt" in text(folder, "found.txt") and len(text(folder, "found.txt").split()) == 1,
    ),
    Task(
        "mend",
        "The function sum_to in sums.py leaves out the last number. Fix it in the file.",
        {"sums.py": SUMS},
        lambda folder, _: passes(folder, SUMS_CHECK),
    ),
    Task(
        "answer",
        "Which port is set in settings.ini? Write the number, and nothing else, into port.txt.",
        {"settings.ini": SETTINGS},
        holds("port.txt", "8471"),
    ),
    Task(
        "create",
        "Create a file named hello.txt that contains the text: good morning",
        {},
        holds("hello.txt", "good morning"),
    ),
    Task(
        "rename",
        "Rename the file draft.txt to final.txt.",
        {"draft.txt": "the text\n"},
        lambda folder, _: text(folder, "final.txt") == "the text" and not (folder / "draft.txt").exists(),
    ),
    Task(
        "count",
        "How many lines does names.csv have? Write the number, and nothing else, into count.txt.",
        {"names.csv": NAMES},
        holds("count.txt", "24"),
    ),
    Task(
        "replace",
        "In letter.txt, replace the word colour with color everywhere.",
        {"letter.txt": LETTER},
        holds("letter.txt", LETTER.replace("colour", "color").strip()),
    ),
)
"""Three that spell out the command to run, then seven that leave it to the agent."""
