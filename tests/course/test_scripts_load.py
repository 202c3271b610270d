"""The programs that p13's second page names run as it names them; its settings and names exist."""

import re
import shlex
import sys

import pytest

from gradus import phases
from gradus.server.xray.view import resource
from phases.p13_serving.load import __main__ as load
from tests.course.conftest import ROOT

FOLDER = ROOT / "phases/p13_serving"
PAGE = (FOLDER / "load.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^python -m phases\.p13_serving\.load(.*?)(?: *#.*)?$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("options", PROGRAMS)
def test_a_program_of_the_page_runs(monkeypatch, capsys, options):
    monkeypatch.setattr(load, "REQUESTS", 2000)
    monkeypatch.setattr(sys, "argv", ["load", *shlex.split(options)])
    assert load.main() == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"capacity: [\d.]+ requests/s, [\d,]+ tokens/s", head)
    assert columns.split()[0] == ("users" if "--closed" in options else "requests/s") and len(rows) >= 5
    shares = [float(row.split()[4].rstrip("%")) for row in rows]
    assert shares[0] == 100 and shares[-1] < 90, "all are good at a low load, and many are not at a high one"


def test_the_page_s_engine_is_the_programs():
    (fixed, row, token) = re.search(r"Pace\(fixed=([\d.]+), row=([\d.]+), token=([\d.]+)", PAGE).groups()
    source = (FOLDER / "load/__main__.py").read_text(encoding="utf-8")
    for name, seconds in (("fixed", fixed), ("row", row), ("token", token)):
        assert f'"--{name}", type=float, default={1e3 * float(seconds):.1f}' in source


def test_the_page_is_not_longer_than_the_first():
    assert PAGE.count("\n") <= (FOLDER / "README.md").read_text(encoding="utf-8").count("\n")


def test_the_x_ray_has_the_words_that_the_page_quotes():
    script = resource("live.js")
    for word in ("Queue", "Batch", "Steps", "Pages"):
        assert f'"{word}"' in PAGE and f'card("{word}"' in script
    assert "✕" in PAGE and '"✕"' in script


def test_the_page_s_alerts_exist():
    rules = (ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8")
    named = re.findall(r"\bGradus[A-Z]\w+", PAGE)
    assert len(named) >= 6 and all(f"alert: {name}\n" in rules for name in named)
    metrics = re.findall(r"`(gradus_\w+)`", PAGE)
    described = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    assert metrics and all(f"`{name.removeprefix('gradus_')}`" in described for name in metrics)


def test_a_student_s_router_runs_in_the_simulation(tmp_path):
    source = (FOLDER / "load/router.py").read_text(encoding="utf-8")
    (tmp_path / "router.py").write_text(source.replace("> bound:", "> 1e9:"), encoding="utf-8")
    yours = phases.solution("p13", tmp_path)
    module = yours.module("load.replicas")
    assert module.router.__file__ == str(tmp_path / "router.py")
