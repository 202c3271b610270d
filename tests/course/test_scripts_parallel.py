"""The programs that p12's lesson names run as it names them, with a tiny model. Their ranks are threads here."""

import re
import runpy
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from gradus.errors import ConfigError
from phases.p12_parallelism import __main__ as program
from phases.p12_parallelism import demo, process, replicas, roofline, watch
from tests.cli.conftest import gradus  # noqa: F401  # the command line, as a fixture
from tests.course.conftest import ROOT

FOLDER = ROOT / "phases/p12_parallelism"
LESSON = (FOLDER / "README.md").read_text(encoding="utf-8")


def launch(job):
    """Run a job's ranks as threads. Their exchanges are kept until all have ended."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(count := job.parts * job.stages) as pool:
        jobs = [replace(job, rank=rank, path=f"{folder}/meeting") for rank in range(count)]
        return [found for found, _ in list(pool.map(process.run, jobs))]


@pytest.fixture(autouse=True)
def in_threads(monkeypatch):
    monkeypatch.setattr(process, "launch", launch)
    monkeypatch.setattr(program, "launch", launch)


def run(monkeypatch, capsys, module, *arguments):
    """Call a program's main. Returns its exit code, and what it printed."""
    monkeypatch.setattr(sys, "argv", [module.__name__, *arguments])
    code = module.main()
    return code, capsys.readouterr()


def test_the_lesson_names_every_program_of_the_phase():
    named = set(re.findall(r"^python -m phases\.p12_parallelism(?:\.(\w+))?", LESSON, flags=re.MULTILINE))
    programs = {path.stem for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text("utf-8")}
    assert (
        {name or "__main__" for name in named}
        == programs - {"process"}
        == {"__main__", "watch", "roofline", "replicas"}
    )


@pytest.mark.parametrize(("arguments", "ranks"), [((), 2), (("--stages", "2", "--micro-batches", "2"), 4)])
def test_ranks_answer_like_one_process_and_the_lesson_shows_it(arguments, ranks, monkeypatch, capsys):
    code, said = run(monkeypatch, capsys, program, "--model", "random:tiny-llama", *arguments)
    assert code == 0
    lines = said.out.splitlines()
    assert lines[-1] == f"{ranks} of {ranks} ranks have the tokens of one process."
    assert [line.split(":")[0] for line in lines[: ranks + 1]] == [
        *(f"rank {rank}" for rank in range(ranks)),
        "one process",
    ]
    if not arguments:
        assert "\n".join(lines[:3]) in LESSON and lines[-1] in LESSON


def test_other_tokens_are_a_failure(monkeypatch, capsys):
    def other(job):
        found = launch(job)
        return found if job.parts == 1 else [found[0], found[1] | {"answers": [[1]] * 4}]

    monkeypatch.setattr(program, "launch", other)
    code, said = run(monkeypatch, capsys, program, "--model", "random:tiny-llama", "--max-tokens", "1")
    assert code == 1 and said.out.splitlines()[-1] == "1 of 2 ranks have the tokens of one process."


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ranks", "3"), "160 features cannot be divided among 3 ranks"),
        (("--phase", "p02"), "p02 has a runner of its own"),
        (("--phase", "p99"), "phase must be one of p00"),
        (("--model", "random:nothing"), "nothing"),
    ],
)
def test_a_mistake_is_one_line(arguments, says, monkeypatch, capsys):
    code, said = run(monkeypatch, capsys, program, "--model", "random:tiny-llama", *arguments)
    assert code == 2 and says in said.err and said.err.count("\n") == 1


def test_watch_shows_both_ranks_in_order_of_time(monkeypatch, capsys):
    code, said = run(monkeypatch, capsys, watch, "--max-tokens", "2")
    head, *rows, first, second = said.out.splitlines()
    assert code == 0 and head.split() == ["ms", "took", "rank", "what"]
    times = [float(row.split()[0]) for row in rows]
    assert times == sorted(times) and first.startswith("rank 0 has waited") and second.startswith("rank 1 has waited")
    # per step: two sums in each of four layers, the embedding, and the head; two steps on each rank
    assert sum("exchange" in row for row in rows) == 2 * 2 * (2 * 4 + 2)
    assert sum("step of micro-batch 0" in row for row in rows) == 2 * 2


def test_watch_tells_micro_batches_apart(monkeypatch, capsys):
    arguments = ("--ranks", "1", "--stages", "2", "--micro-batches", "2", "--max-tokens", "2")
    code, said = run(monkeypatch, capsys, watch, *arguments)
    assert code == 0 and "exchange" not in said.out
    for micro_batch in range(2):
        assert said.out.count(f"step of micro-batch {micro_batch}") == 2 * 2
    assert said.out.count("receive") == 4 + 4  # rows in the second stage, tokens in the first


def test_a_rank_computes_in_its_steps_where_it_does_not_wait():
    found = [("step", 0, 10), ("exchange", 2, 3), ("exchange", 5, 7), ("receive", 12, 16), ("step", 16, 20)]
    notes = [watch.Note(0, *note) for note in found] + [watch.Note(1, "exchange", 2, 9)]
    assert watch.busy(notes, 0) == [(0, 2), (3, 5), (7, 10), (16, 20)]
    assert watch.waiting(notes, 0) == pytest.approx(1 - 11 / 20) and watch.waiting(notes, 1) == 1
    assert demo.strip([watch.Note(0, "step", 0, 9), watch.Note(0, "receive", 9, 18)], 0) == "#" * 36 + "." * 36


def test_the_demo_shows_three_cuts_and_three_schedules(gradus):  # noqa: F811
    done = gradus("demo", "p12")
    assert done.code == 0, done.err
    assert done.out.startswith(demo.QUESTION)
    assert [name for name, *_ in demo.WAYS] == re.findall(
        r"^(.*) \(# computes, \. waits\):$", done.out, flags=re.MULTILINE
    )
    strips = re.findall(r"^  rank [01]  ([#.]+)$", done.out, flags=re.MULTILINE)
    assert len(strips) == 6 and all(len(strip) == demo.COLUMNS for strip in strips)
    assert "stage 3  ...abcdabcdabcd" in done.out
    refused = gradus("demo", "p12", "--model", "random:smollm2-135m")
    assert refused.code == 2 and refused.err == "gradus: 9 heads cannot be divided among 2 ranks\n"


@pytest.mark.parametrize("name", ["roofline", "replicas"])
def test_what_is_only_computed_is_a_program_too(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.delitem(sys.modules, f"phases.p12_parallelism.{name}")
    runpy.run_module(f"phases.p12_parallelism.{name}", run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) == {"roofline": 1 + 2 * 4, "replicas": 1 + 6}[name]


def test_a_step_on_one_device_is_its_bytes_and_on_two_half_of_them_and_the_toll():
    config = roofline.SHAPES["llama-3.1-8b"]
    alone, two = roofline.step(config, 1, 1), roofline.step(config, 2, 1)
    weights = 2 * (8_030_261_248 - 128_256 * 4096)  # without the table
    assert alone.weights == pytest.approx(weights / roofline.BANDWIDTH) and alone.exchanges == 0
    assert two.weights == alone.weights / 2 and two.cache == alone.cache / 2
    assert two.exchanges == pytest.approx(64 * 14.1e-6)
    assert roofline.step(config, 16, 1).cache == roofline.step(config, 8, 1).cache, "8 key-value heads"
    assert roofline.divisors(config) == [1, 2, 4, 8] and roofline.reduce_us(9) == 17.9


def test_a_roofline_of_layers_that_differ_is_refused_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["roofline", "--model", "tiny-gemma4"])
    with pytest.raises(SystemExit):
        roofline.main()
    assert "error: p12 divides layers that are alike, and those of gemma4 differ" in capsys.readouterr().err
    assert roofline.divisors(roofline.SHAPES["smollm2-135m"]) == [1, 3]


def test_a_choice_of_two_replicas_balances_better_than_none():
    draw = replicas.random.Random(0)
    one, two = (replicas.mean(replicas.fullest(32, choices, draw) for _ in range(20)) for choices in (1, 2))
    assert 1 < two < 1.2 < one and replicas.fullest(1, 2, draw) == 1
    assert replicas.hits(4) == 0.25 and replicas.days_between_faults(200) == pytest.approx(10.6, abs=0.1)


def test_a_refusal_of_a_rank_reaches_the_caller():
    with pytest.raises(ConfigError, match="cannot be divided"):
        launch(process.Job("random:tiny-llama", ((1,),), parts=3))
