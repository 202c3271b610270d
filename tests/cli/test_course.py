"""Finding and loading the phases, and `gradus phases`."""

import json
import sys

import pytest

from gradus import phases
from gradus.errors import ConfigError


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of its own in place of the repository's: course("p00_first", …) makes and installs it."""
    for name in [name for name in sys.modules if name.split(".")[0] == "phases"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)

    def make(*folders: str) -> None:
        (tmp_path / "phases").mkdir()
        (tmp_path / "phases" / "__init__.py").touch()
        for folder in folders:
            (tmp_path / "phases" / folder).mkdir()
            (tmp_path / "phases" / folder / "engine.py").write_text(f"name = {folder!r}\n")

    yield make
    for name in [name for name in sys.modules if name.split(".")[0] == "phases"]:
        del sys.modules[name]


def test_phases_come_in_the_order_of_their_numbers(course):
    course("p10_tenth", "p00_first", "p02_second", "notes", "p3_short")
    assert [phase.folder for phase in phases.available()] == ["p00_first", "p02_second", "p10_tenth"]
    assert phases.highest().name == "p10"


def test_a_folder_without_an_engine_is_no_phase(course, tmp_path):
    course("p00_first")
    (tmp_path / "phases" / "p01_empty").mkdir()
    assert [phase.name for phase in phases.available()] == ["p00"]


def test_a_program_around_engines_is_a_phase_without_an_engine(course, tmp_path):
    course("p00_first", "p02_second")
    (tmp_path / "phases" / "p13_serving").mkdir()
    (tmp_path / "phases" / "p13_serving" / "__main__.py").touch()
    assert [phase.name for phase in phases.available()] == ["p00", "p02", "p13"]
    assert [phase.name for phase in phases.engines()] == ["p00", "p02"]
    assert phases.highest().name == phases.find("p13").name == "p13"
    with pytest.raises(ConfigError, match=r"run `python -m phases\.p13_serving`, or name one of p00, p02$"):
        phases.load("p13")


@pytest.mark.parametrize("name", ["p00", "p00_first"])
def test_a_phase_is_loaded_by_its_short_or_its_long_name(course, name):
    course("p00_first")
    assert phases.load(name).name == "p00_first"


@pytest.mark.parametrize("name", ["p1", "", "p01", "../p00_first", "p00_first.engine"])
def test_an_unknown_name_is_refused_with_those_that_exist(course, name):
    course("p00_first", "p02_second")
    with pytest.raises(ConfigError, match="one of p00, p02") as refusal:
        phases.load(name)
    assert repr(name) in str(refusal.value)


def test_without_the_repository_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(phases, "find_spec", lambda name: None)
    assert phases.available() == []
    with pytest.raises(ConfigError, match=r"clone it and run pip install -e \."):
        phases.load("p00")


def test_some_other_folder_called_phases_is_not_the_course(monkeypatch, tmp_path):
    (tmp_path / "phases").mkdir()  # importable as a namespace package
    for name in [name for name in sys.modules if name.split(".")[0] == "phases"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(
        sys, "meta_path", [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
    )
    assert phases.available() == []


def test_the_table_shows_every_phase_and_what_exists(gradus, monkeypatch):
    monkeypatch.setitem(phases.SYLLABUS, 99, phases.Lesson("Later", "an idea without a folder", 1))
    done = gradus("phases")
    assert done.code == 0
    for number, lesson in phases.SYLLABUS.items():
        line = next(line for line in done.out.splitlines() if line.startswith(f"p{number:02}"))
        assert lesson.idea in line
    last = phases.highest().name
    assert next(line for line in done.out.splitlines() if line.startswith(last)).rstrip().endswith("ready")
    planned = [line for line in done.out.splitlines() if line.rstrip().endswith("planned")]
    assert [line[:3] for line in planned] == ["p99"] and "the final engine runs" in done.err


def test_json_says_the_same(gradus):
    rows = {row["name"]: row for row in json.loads(gradus("phases", "--json").out)}
    assert rows["p00"]["exists"] and rows[phases.highest().name]["exists"]
    assert [name for name, row in rows.items() if row["exists"]] == [phase.name for phase in phases.available()]
