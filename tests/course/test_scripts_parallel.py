"""The programs that p12's lesson names run as it names them, with a tiny model. Their ranks are threads here."""

import json
import re
import runpy
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from gradus.errors import ConfigError
from gradus.models import SHAPES, parameter_count
from phases.p12_parallelism import __main__ as program
from phases.p12_parallelism import counted, demo, process, replay, replicas, roofline, watch
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
    assert programs - {"process"} == {"__main__", "watch", "roofline", "replicas"}
    assert {name or "__main__" for name in named} | {"replicas"} == programs - {"process"}
    assert "\nreplicas.main()\n" in LESSON


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
        assert [line.split()[-2] for line in lines[:3]] == ["119,360", "119,360", "238,144"]
        assert lines[-1] in LESSON and "119,360" in LESSON and "238,144" in LESSON


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


DONE = counted.Act(counted.COMPUTES, 0, 0, (("down", 0),), weights=10)
SUM = counted.Act(counted.GATHER, 0, 0, size=8)


def told(pieces):
    return [(piece.rank, piece.kind, piece.at, piece.until) for piece in pieces]


def test_a_rank_that_gathers_waits_for_the_last_of_its_stage():
    late = replace(DONE, weights=14)
    pieces = replay.replay([[DONE, SUM, DONE], [late, SUM]], parts=2, toll=3)
    assert told(pieces) == [
        (0, "computes", 0, 10),
        (1, "computes", 0, 14),
        (0, "waits", 10, 14),
        (0, "exchanges", 14, 17),
        (1, "exchanges", 14, 17),
        (0, "computes", 17, 27),
    ]
    assert replay.length(pieces) == 27


def test_a_rank_that_receives_waits_for_its_sender_who_goes_on():
    sends, receives = counted.Act(counted.SEND, 0, 0, size=8, to=1), counted.Act(counted.RECEIVE, 0, 0, to=0)
    pieces = replay.replay([[DONE, sends, DONE, sends], [receives, DONE, DONE, receives]], parts=1, toll=3)
    assert told(pieces) == [
        (0, "computes", 0, 10),
        (1, "waits", 0, 10),
        (0, "computes", 10, 20),
        (1, "exchanges", 10, 13),
        (1, "computes", 13, 23),
        (1, "computes", 23, 33),
        (1, "exchanges", 33, 36),  # it was sent long before
    ]


def test_what_ranks_read_is_every_matrix_once_per_step_and_half_of_it_where_it_is_cut():
    whole = SHAPES["tiny-llama"]
    alone, *_ = counted.acts("random:tiny-llama", 1, 1, 1, 1, tokens=2)
    read = [act.weights for act in alone if act.kind == counted.COMPUTES]
    assert sum(read) == 2 * (parameter_count(whole) - whole.vocab_size * whole.hidden_size - 9 * whole.hidden_size)
    cut = counted.acts("random:tiny-llama", 2, 1, 1, 1, tokens=2)
    assert [sum(act.weights for act in rank) for rank in cut] == [sum(read) / 2] * 2
    assert [act.kind for act in cut[0]].count(counted.GATHER) == 2 * (2 * 4 + 2)
    first, second = counted.acts("random:tiny-llama", 1, 2, 1, 1, tokens=2)
    assert sum(act.weights for act in (*first, *second)) == sum(read)
    layers = [{layer for act in stage for role, layer in act.matrices if role != "head"} for stage in (first, second)]
    assert layers == [{0, 1}, {2, 3}]


def test_a_rank_s_strip_shows_what_takes_most_of_a_column_and_every_exchange():
    pieces = replay.replay([[DONE, SUM, DONE], [DONE, SUM]], parts=2, toll=3)
    assert demo.strip(pieces, 0, 5) == "##=##" and demo.strip(pieces, 1, 5) == "##=.."
    second = replace(DONE, micro_batch=1)
    assert demo.strip(replay.replay([[DONE, second]], 1, 0), 0, 5) == "aabb"


def test_the_demo_shows_every_cut_and_three_schedules(gradus):  # noqa: F811
    done = gradus("demo", "p12")
    assert done.code == 0, done.err
    assert done.out.startswith(demo.QUESTION)
    assert all(f"\n{name}, " in done.out for name, *_ in demo.WAYS)
    strips = re.findall(r"^  rank [01]  ([#ab=.]+)$", done.out, flags=re.MULTILINE)
    assert len(strips) == 2 * 4 and all(len(strip) < 100 for strip in strips)
    assert "stage 3  ...abcdabcdabcd" in done.out
    refused = gradus("demo", "p12", "--model", "random:tiny-olmo2")
    assert refused.code == 2 and refused.err.startswith("gradus: the heads of olmo2 share a norm")
    assert refused.err.count("\n") == 1


def test_the_demo_is_the_8b_model_on_two_h200_in_small():
    """Its exchanges take the same share of a step, so it gains as much."""
    config = roofline.SHAPES["llama-3.1-8b"]
    alone, *_ = counted.acts(demo.MODEL, 1, 1, 1, 1, tokens=1)
    cut, read = counted.acts(demo.MODEL, 2, 1, 1, 1, tokens=1), sum(act.weights for act in alone)
    exchanges = sum(act.kind != counted.COMPUTES for act in cut[0])
    for way, share in demo.SHARES.items():
        two = roofline.step(config, 2, 1, way=way)
        assert two.sums / two.seconds == pytest.approx(share, abs=0.005)
        gain = read / replay.length(replay.replay(cut, 2, demo.toll_of(read, exchanges, share)))
        assert gain == pytest.approx(roofline.step(config, 1, 1).seconds / two.seconds, abs=0.01)


@pytest.mark.parametrize("name", ["roofline", "replicas"])
def test_what_is_only_computed_is_a_program_too(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.delitem(sys.modules, f"phases.p12_parallelism.{name}")
    runpy.run_module(f"phases.p12_parallelism.{name}", run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) == {"roofline": 2 * (2 + 2 * 4), "replicas": 1 + 6}[name]


def test_a_step_on_one_device_is_its_bytes_and_on_two_half_of_them_and_the_toll():
    config = roofline.SHAPES["llama-3.1-8b"]
    alone, two, launch = (
        roofline.step(config, n, 1, way=way) for n, way in ((1, "NCCL"), (2, "NCCL"), (2, "one launch"))
    )
    weights = 2 * (8_030_261_248 - 128_256 * 4096)  # without the table
    assert alone.weights == pytest.approx(weights / 4.3e12) and alone.sums == 0
    assert two.weights == alone.weights / 2 and two.cache == alone.cache / 2
    assert two.sums == pytest.approx(64 * 14.1e-6) and launch.sums == pytest.approx(64 * 3.3e-6)
    assert roofline.step(config, 16, 1).cache == roofline.step(config, 8, 1).cache, "8 key-value heads"
    assert roofline.divisors(config) == [1, 2, 4, 8]
    assert roofline.toll(roofline.PAIRS["h200"].tolls["NCCL"], 9) == 17.9


def test_the_tolls_of_two_h100_are_those_that_were_measured():
    found = json.loads((ROOT / "benchmarks" / "tensor_parallel.json").read_text("utf-8"))["parts"]["exchange"]
    for way, name in (("NCCL", "nccl"), ("one launch", "ours, early launches")):
        for rows, took in roofline.PAIRS["h100"].tolls[way].items():
            assert took == pytest.approx(found["us_per_call"][name][str(rows)], abs=0.06)
    assert roofline.PAIRS["h200"].tolls["one launch"] == roofline.PAIRS["h100"].tolls["one launch"]


def test_more_rows_than_a_sum_was_measured_with_are_refused_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["roofline", "--batch", "300"])
    with pytest.raises(SystemExit):
        roofline.main()
    assert "error: a sum was measured up to 256 rows, got 300: give a smaller --batch" in capsys.readouterr().err


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
