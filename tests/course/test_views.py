"""Views of a phase: in reading order, as a difference, and as one file that runs."""

import os
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.course.views.difference import NOT_PARTS, difference, parts
from gradus.course.views.flat import flatten
from gradus.course.views.reading import reading_order
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.errors import ConfigError
from gradus.models import SHAPES, create_model, randomize
from tests.course.conftest import PHASES
from tests.forked import run_forked


@pytest.fixture
def course(tmp_path):
    """course(engine=…, parts=…, lesson=…) → a phase in a repository of its own."""

    def make(engine: str = "", part: str = "", lesson: str = "") -> phases.PhaseInfo:
        folder = tmp_path / "phases" / "p00_mine"
        folder.mkdir(parents=True)
        (folder / "engine.py").write_text(f'"""Mine."""\n\n{engine}\n')
        (folder / "part.py").write_text(f'"""A part."""\n\n{part}\n')
        (folder / "README.md").write_text(f"# Mine\n\n## Read the code\n\n{lesson}\n\n## Run it\n\n1. `other.py`: no\n")
        return phases.PhaseInfo("p00", 0, "p00_mine", "Mine", "an idea", folder)

    return make


# -- reading order -----------------------------------------------------------------------------------------------------


def test_the_order_is_the_lessons(course):
    lesson = """Some words.

1. `phases/p00_mine/part.py`, all of it: `not_this.py` is
   only mentioned; `engine.py`: the wiring.
2. `Thing` in `part.py`: once more.
"""
    assert reading_order(course(lesson=lesson)) == ["phases/p00_mine/part.py", "phases/p00_mine/engine.py"]


def test_a_lesson_that_names_a_lost_file_is_a_mistake(course):
    with pytest.raises(ConfigError, match=r"names phases/p00_mine/lost\.py"):
        reading_order(course(lesson="1. `phases/p00_mine/lost.py`: gone."))


@pytest.mark.parametrize("phase", PHASES)
def test_a_lesson_reads_every_part_of_its_phase(phase):
    info = phases.find(phase)
    own = {f"phases/{info.folder}/{path.name}" for path in info.path.glob("*.py") if path.name not in NOT_PARTS}
    assert own | ({f"phases/{info.folder}/engine.py"} if info.has("engine") else set()) <= set(reading_order(info))


# -- difference --------------------------------------------------------------------------------------------------------


def names(phase: str) -> dict[str, str]:
    return {role: part.__name__ for role, part in parts(phases.find(phase)).items()}


def test_the_parts_of_a_phase_are_found_in_its_wiring():
    assert names("p00") == {
        "scheduler": "OneAtATime",
        "cache manager": "NoCache",
        "runner": "ModelRunner",
        "attention backend": "Recompute",
        "sampler": "Sampler",
    }


def test_parts_that_another_function_of_the_course_puts_together_are_found_too():
    assert names("p04")["attention backend"] == names("p05")["attention backend"] == "GatherAttention"
    assert names("p04")["cache manager"] == "PagedCache" and names("p05")["cache manager"] == "PrefixCache"
    assert names("p05")["scheduler"] == "PrefixBatching" and names("p06")["scheduler"] == "ChunkedPrefill"


def test_p01_swaps_the_cache_manager_and_the_backend_and_nothing_else():
    lines = difference(phases.find("p00"), phases.find("p01"))
    table = [line.split("   ") for line in lines if line.startswith(("scheduler ", "cache ", "runner ", "attention "))]
    assert {row[0].strip(): row[-1].strip() for row in table} == {
        "scheduler": "the same",
        "cache manager": "Contiguous",
        "runner": "the same",
        "attention backend": "ContiguousAttention",
    }
    assert any(line.startswith("phases/p01_kv_cache/contiguous.py: ") for line in lines)
    headings = [line for line in lines if line.startswith("# ")]
    assert "# cache manager: NoCache → Contiguous" in headings and not any("scheduler" in line for line in headings)
    assert "+from phases.p01_kv_cache.contiguous import Contiguous, ContiguousAttention" in lines
    assert "+        return self.length if id == self.owner else 0" in lines


def test_a_phase_does_not_differ_from_itself():
    same = phases.find("p01")
    assert not [line for line in difference(same, same) if line.startswith(("+", "-", "@@"))]


# -- flat --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [phase.name for phase in phases.engines()])
def test_a_flat_phase_stands_alone_and_gives_the_phases_tokens(phase, monkeypatch, tmp_path):
    text = flatten(phases.find(phase))
    if "import triton" in text:
        pytest.importorskip("triton", reason="Triton is for Linux alone")
    assert "import phases" not in text and "from phases" not in text
    file = tmp_path / "flat.py"  # a file, since Triton reads a kernel's source
    file.write_text(text, encoding="utf-8")
    spec = spec_from_file_location("flat", file)
    flat = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "flat", flat)  # where dataclasses look up what an annotation names
    spec.loader.exec_module(flat)
    assert tokens(flat.build) == tokens(phases.load(phase).build)


def tokens(build) -> list[tuple]:
    model = create_model(SHAPES["tiny-llama"])
    randomize(model, seed=0)
    limits = ModelLimits(model.config.vocab_size, model.config.context_length)
    engine = build(model, EngineOptions(limits))
    for name, prompt in (("a", [1, 2, 3]), ("b", [4])):
        engine.submit(Request.create(name, prompt, SamplingParams(max_tokens=5), limits))
    outputs = []
    with torch.inference_mode():
        while engine.has_work:
            outputs += [(output.request_id, output.tokens) for output in engine.step()]
    return outputs


def test_a_flat_phase_is_a_program(tmp_path):
    file = tmp_path / "p03.py"
    file.write_text(flatten(phases.find("p03")), encoding="utf-8")
    nothing_pulled = os.environ | {"GRADUS_HOME": str(tmp_path)}
    done = run_forked([sys.executable, "-m", "p03"], cwd=tmp_path, env=nothing_pulled)
    assert done.returncode == 0, done.stderr
    lines = [re.fullmatch(r"(first|second) (['\"].*['\"]) (length|)", line) for line in done.stdout.splitlines()]
    assert len(lines) == 12 and all(lines) and len({line[2] for line in lines}) > 1, "text, not numbers"


def test_only_what_the_phase_reaches_is_in_it():
    text = flatten(phases.find("p03"))
    assert "def visible(" in text and "class SlotTensors" in text
    assert "class PaddedAttention" not in text and "def pad(" not in text


@pytest.mark.parametrize(
    ("engine", "part", "says"),
    [
        ("import phases.p00_mine.part\n\nbuild = phases", "", "as `from … import name`"),
        ("from phases.p00_mine.part import a as b\n\nbuild = b", "a = 1", "as `from … import name`"),
        ("from phases.p00_mine import part\n\nbuild = part.a", "a = 1", r"phases\.p00_mine is not a file"),
        ("from phases.p00_mine.part import a\n\nbuild = a", "b = 1", "does not define a"),
        ("from phases.p00_mine.part import a\n\nbuild = a\nb = 2", "b = 1\na = b", "both define b"),
        ("if True:\n    build = 1", "", r"line 3: only imports, assignments"),
    ],
)
def test_what_cannot_be_flattened_is_said(course, engine, part, says):
    with pytest.raises(ConfigError, match=says):
        flatten(course(engine, part))
