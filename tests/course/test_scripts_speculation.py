"""The programs that p08's lesson names run as it names them, those that read a model with a tiny one."""

import re
import runpy
import shlex
import sys

import pytest

from tests.course.conftest import ROOT

LESSON = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "phases/p08_speculation").glob("*.md")))
COMMANDS = re.findall(r"^python -m (phases\.p08_speculation\.\w+)(.*)$", LESSON, flags=re.MULTILINE)
TINY = ["--model", "random:tiny-llama", "--prompt", "40", "--tokens", "24"]


@pytest.fixture
def program(monkeypatch, capsys):
    """program("phases.p08_speculation.rules", ["--option"]) → what it prints."""

    def run(module: str, arguments: list[str]) -> str:
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        monkeypatch.delitem(sys.modules, module, raising=False)
        runpy.run_module(module, run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(("module", "arguments"), COMMANDS)
def test_a_program_of_the_lesson_runs_as_it_is_shown(program, module, arguments):
    out = program(module, [*shlex.split(arguments), *(TINY if module.endswith("acceptance") else [])])
    assert len(out.splitlines()) >= 4


def test_the_lesson_names_every_program_of_the_phase():
    folder = ROOT / "phases/p08_speculation"
    programs = {path.stem for path in folder.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}
    assert {module.rpartition(".")[2] for module, _ in COMMANDS} == programs == {"acceptance", "payoff", "rules"}


@pytest.mark.parametrize("options", [[], ["--temperature", "1"], ["--draft", "random:tiny-llama", "--drafts", "2"]])
def test_acceptance_counts_steps_of_texts_that_stay_the_same(program, options):
    lines = program("phases.p08_speculation.acceptance", [*TINY, *options]).splitlines()
    assert len(lines) == 4 and all(line.endswith("  the same tokens") for line in lines)
    per_step = [float(re.search(r"tokens per step ([\d.]+)", line)[1]) for line in lines]
    assert min(per_step) >= 1
    if "--draft" in options:  # the model itself: 23 tokens, three per step
        assert [line.split("accepted")[1].split()[0] for line in lines[1::2]] == ["100%", "100%"]
        assert per_step[1::2] == [pytest.approx(23 / 8, abs=0.01)] * 2
