"""docs/models.md shows what the code's tables say: the families that load, what they cost, and what does not load."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from gradus.cli.families import (
    CONTEXT_COLUMNS,
    COST_COLUMNS,
    FAMILY_COLUMNS,
    context_cells,
    cost_cells,
    costs,
    families,
    family_cells,
)
from gradus.models.families.unsupported import UNSUPPORTED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (f"| {' | '.join(cells)} |" for cells in (columns, *rows))
    head, *body = lines
    return "\n".join([head, "|" + "---|" * len(columns), *body])


def refused() -> list[Sequence[str]]:
    """A row for each reason: the model types, and the checkpoints to take instead."""
    rows: dict[str, tuple[list[str], list[str]]] = {}
    for kind, (reason, nearest) in UNSUPPORTED.items():
        kinds, instead = rows.setdefault(reason, ([], []))
        kinds.append(kind)
        instead.append(nearest.checkpoint)
    return [
        [reason, ", ".join(f"`{kind}`" for kind in kinds), ", ".join(dict.fromkeys(instead))]
        for reason, (kinds, instead) in rows.items()
    ]


TABLES = {
    "families": table(FAMILY_COLUMNS, map(family_cells, families())),
    "costs": table(COST_COLUMNS, map(cost_cells, costs())),
    "contexts": table(CONTEXT_COLUMNS, (context_cells(row) for row in costs() if any(row["context_bytes"].values()))),
    "refused": table(("why", "model_type", "instead"), refused()),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_the_codes_table(name):
    assert TABLES[name] in PAGE, f"docs/models.md needs this table of {name}:\n{TABLES[name]}"


def test_the_page_has_no_other_tables():
    """But the one of speeds, which tests/benchmarks/test_families.py compares with the samples."""
    assert len(re.findall(r"^\|---", PAGE, re.MULTILINE)) == len(TABLES) + 1


def test_what_the_doctor_is_shown_to_say_is_what_it_says(capsys, monkeypatch):
    from gradus.cli import main

    monkeypatch.setenv("COLUMNS", "120")
    command, shown = re.search(r"^\$ gradus (doctor random:\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL).groups()
    assert main(command.split()) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == shown.splitlines()
