"""The programs that p11's lesson names run as it names them, with a tiny model."""

import re
import runpy
import shlex
import sys

import pytest

from tests.course.conftest import ROOT

LESSON = (ROOT / "phases/p11_structured_output/README.md").read_text(encoding="utf-8").replace(" \\\n   ", "")
COMMANDS = re.findall(r"^python -m (phases\.p11_structured_output\.\w+)(.*)$", LESSON, flags=re.MULTILINE)


@pytest.mark.parametrize(("module", "arguments"), COMMANDS)
def test_a_program_of_the_lesson_runs_as_it_is_shown(module, arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [module, *shlex.split(arguments), "--model", "random:tiny-llama"])
    monkeypatch.delitem(sys.modules, module, raising=False)
    runpy.run_module(module, run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    if module.endswith("cost"):
        assert len(lines) == 9 and lines[-1].startswith("at most 100 characters")
    else:
        answer = re.search(r"with mask: '(.*)'", lines[1])[1]
        assert re.fullmatch(r"Paris|London| \d{3}-\d{4}", answer)
        assert len(lines) == 4 + len(answer) + 1  # a byte per token, and the end


def test_the_lesson_names_every_program_of_the_phase():
    folder = ROOT / "phases/p11_structured_output"
    programs = {path.stem for path in folder.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}
    assert {module.rpartition(".")[2] for module, _ in COMMANDS} == programs == {"cost", "watch"}
