"""A program in another language runs the speedrun: the same tokens as ours, or a line that says what went wrong."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gradus.bench.measure.drive import ContenderFailed
from gradus.bench.speedrun import oracle, run
from gradus.bench.speedrun.contestants import EngineContestant
from gradus.bench.speedrun.workload import Ask
from gradus.course.foreign import published
from gradus.course.foreign.racing import ProgramContestant
from gradus.course.foreign.weights import Models, drawn, write
from gradus.errors import ConfigError
from gradus.loading import Checkpoint, open_checkpoint
from tests.bench.test_speedrun import Words

ROOT = Path(__file__).parents[3]
REFERENCE = f"{shlex.quote(sys.executable)} -m tests.course.foreign.reference p06"
ANSWERING = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    print(json.dumps(ANSWER(message)), flush=True)
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Checkpoint:
    folder = Models(tmp_path_factory.mktemp("racing")).given()
    return replace(open_checkpoint(str(folder)), tokenizer=Words.of_bytes())


@pytest.fixture(autouse=True)
def from_the_repository(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)  # where the reference is found


def test_a_program_gives_the_tokens_of_our_own_engine(tiny):
    theirs = run.measure(tiny, ProgramContestant(tiny, REFERENCE, 60.0), repetitions=2)
    ours = run.measure(tiny, EngineContestant(tiny, {"phase": "p00", "device": "cpu", "dtype": "float32"}), 1)
    assert theirs.runs[0].answers == theirs.runs[1].answers == ours.runs[0].answers
    assert run.judged(tiny, theirs.seed, theirs.warm_up, [theirs.runs[0].answers]).wrong == ""


def test_the_engine_in_c_runs_the_workload(tiny, compiled):
    program = compiled((Path(__file__).with_name("engine.c")).read_text(encoding="utf-8"))
    measured = run.measure(tiny, ProgramContestant(tiny, str(program), 60.0), repetitions=1)
    assert run.judged(tiny, measured.seed, measured.warm_up, [measured.runs[0].answers]).wrong == ""


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("{'error': 'too large'}", "the program refuses 'configure': too large"),
        ("{'ok': True, 'spans': [], 'ended': []}", "step 1 runs nothing, and 4 requests have not ended"),
        ("{'ok': True, 'ended': []}", "step 1: .* has no 'spans'"),
        ("{'ok': True, 'spans': [{'id': 'z', 'start': 0, 'count': 1, 'tokens': []}], 'ended': []}", "not under way"),
        ("exit(3)", "exit code 3"),
    ],
)
def test_a_program_that_fails_is_described_in_one_line(answer, reason, tiny, tmp_path):
    script = tmp_path / "engine.py"
    script.write_text(ANSWERING.replace("ANSWER(message)", answer), encoding="utf-8")
    with pytest.raises(ContenderFailed, match=reason):
        run.measure(tiny, ProgramContestant(tiny, f"{shlex.quote(sys.executable)} {script}", 20.0))


def test_a_log_knows_the_program_by_its_files(tiny, tmp_path):
    script = tmp_path / "engine.py"
    script.write_text("# an engine", encoding="utf-8")
    contestant = ProgramContestant(tiny, f"{shlex.quote(sys.executable)} {script}", 20.0)
    assert run.plain(contestant.facts)["files"]["engine.py"].startswith("d905c9")
    contestant.close()


def test_the_folder_that_a_program_loads_has_the_models_weights_and_a_head_of_its_own(tmp_path):
    tensors = {name: tensor for name, tensor in drawn().items() if name != "lm_head.weight"}
    tied = open_checkpoint(str(write(tmp_path / "tied", tensors, tie_word_embeddings=True, rope_theta=1e5)))
    whole = open_checkpoint(str(published.write(tied, tmp_path / "whole")))
    assert tied.config.tie_embeddings and not whole.config.tie_embeddings
    ask = Ask((5, 6, 7), 3)
    with torch.inference_mode():
        one, other = (oracle.gaps(oracle.load(each), ask, [1, 2, 3]) for each in (tied, whole))
    assert one == other


def test_random_weights_are_no_folder_for_a_program(tmp_path):
    with pytest.raises(ConfigError, match="has no weights of a Llama to write"):
        published.write(open_checkpoint("random:tiny-llama"), tmp_path)
