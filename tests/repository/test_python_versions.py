"""The supported versions of Python, which pyproject.toml states: every other place agrees with it."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from gradus.doctor import machine

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OLDEST, BEYOND = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["project"]["requires-python"]).groups())
SUPPORTED = [f"3.{minor}" for minor in range(OLDEST, BEYOND)]


def test_the_doctor_knows_the_range():
    assert ((3, OLDEST), (3, BEYOND - 1)) == (machine.OLDEST_PYTHON, machine.NEWEST_PYTHON)


def test_make_tries_each_version_and_the_newest_first():
    (line,) = re.findall(r"^PYTHONS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert line.split() == SUPPORTED[::-1]


def test_ci_runs_each_version():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == SUPPORTED


def test_the_code_is_checked_as_the_oldest_version_reads_it():
    assert PROJECT["tool"]["mypy"]["python_version"] == SUPPORTED[0]
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py3{OLDEST}"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "constraints.txt"])
def test_a_document_that_names_versions_names_the_range(name):
    text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
    named = re.findall(r"Python (?:from )?(3\.\d+) (?:to|or|and) (3\.\d+)", text)
    assert named and set(named) == {(SUPPORTED[0], SUPPORTED[-1])}
