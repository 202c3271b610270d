"""Suites across phases: contenders with something switched off, ablation, matrix, and the suite of the H200."""

import importlib.util
import sys
from pathlib import Path

import pytest

from gradus.bench import __main__ as plain
from gradus.bench import registry
from gradus.bench.contenders.workbench import Room
from gradus.bench.declare.declaration import SWITCHES
from gradus.bench.declare.suites import ABLATION, LADDER, MATRIX, cache_for
from gradus.bench.predict.prediction import continuous, reusing
from gradus.bench.record import results
from gradus.bench.studies import beside, sampling_report
from gradus.config.options import FINAL
from gradus.config.options import SWITCHES as ENGINE_SWITCHES
from gradus.errors import ConfigError
from tests.bench.conftest import TINY
from tests.pairwise import first

ROOT = Path(__file__).parents[2]


# -- contenders with something switched off ----------------------------------------------------------------------------


def test_every_switch_of_the_engine_has_a_name():
    assert tuple(SWITCHES) == tuple(ENGINE_SWITCHES)


def test_the_engine_is_built_without_what_its_name_switches_off(bench):
    room = Room(40, 2)
    whole, single, alone = (bench.engine(name, room) for name in (FINAL, f"{FINAL}-overlap", f"{FINAL}-prefix_cache"))
    assert (whole.lag, single.lag, alone.lag) == (1, 0, 1)
    assert whole.scheduler.cache.index is not None and alone.scheduler.cache.index is None
    assert bench.engine(f"{FINAL}-chunked", room).scheduler.token_budget is None
    assert whole.scheduler.token_budget is not None


def test_without_the_prefix_cache_nothing_is_expected_of_it():
    assert registry.policy_of(f"{FINAL}-prefix_cache") is continuous
    assert registry.policy_of(FINAL) is registry.policy_of(f"{FINAL}-graphs") is reusing


@pytest.mark.parametrize(("contender", "why"), [
    (f"{FINAL}-nothing", f"contender '{FINAL}-nothing': only {FINAL} can be run without some of"),
    ("p03-overlap", f"contender 'p03-overlap': only {FINAL} can be run without some of"),
    (f"{FINAL}-kernels", "graphs need kernels"),
])  # fmt: skip
def test_what_cannot_be_switched_off_is_refused_in_one_line(bench, contender, why):
    with pytest.raises(ConfigError, match=why):
        bench.engine(contender, Room(40, 2))


# -- ablation and matrix -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "table"), first([(ABLATION, "throughput"), (MATRIX, "memory-pressure")]))
def test_a_suite_runs_on_a_cpu_and_every_contender_brings_samples(name, table, tmp_path, known_machine):
    assert plain.main([name, "--quick", "--repeats", "1", "--table", table, "--out", str(tmp_path), *TINY]) == 0
    (run,) = results.read(results.path(tmp_path, "cpu", name)).runs
    contenders = registry.load(name).table(table).contenders
    for cell in run.cells:
        assert [entry.contender for entry in cell.entries] == list(contenders)
        assert all(entry.samples and entry.prediction and not entry.skipped for entry in cell.entries)
    text = (tmp_path / "cpu" / name / "report.md").read_text()
    assert text.startswith(f"# {registry.title_of(name)}, measured on CPU")
    assert (f"{FINAL} without kernels and graphs" in text) == (name == ABLATION)


def test_contenders_of_the_ablation_fit_side_by_side_on_one_gpu():
    """Qwen3-0.6B's cache at bfloat16, for all six, in four fifths of an H200 less the weights."""
    bytes_a_position = 2 * 28 * 8 * 128 * 2
    for table in registry.load(ABLATION).tables:
        for row in table.rows:
            assert len(table.contenders) * row.on("cuda").cache_tokens * bytes_a_position < 0.8 * 138e9


def test_long_prompts_come_while_the_others_still_decode():
    """Even where a step of sixteen takes no more than a millisecond."""
    for name, table in ((ABLATION, "interference"), (MATRIX, "long-prompts")):
        (row,) = registry.load(name).table(table).rows
        work = row.on("cuda").workload
        assert work.last_arrival <= 1e-3 * max(job.output for job in work.jobs) + 0.1


def test_memory_is_short_in_the_matrix_and_a_slot_is_longer_than_a_sequence():
    (row,) = registry.load(MATRIX).table("memory-pressure").rows
    for device in ("cpu", "cuda"):
        here = row.on(device)
        assert here.cache_tokens < cache_for([here.workload])
        assert here.context > here.workload.longest


# -- the H200's --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def h200():
    return script("h200")


def script(name: str):
    """A module of benchmarks/, which is no package: its scripts find each other in their folder."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
        module = sys.modules.setdefault(name, importlib.util.module_from_spec(spec))
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.pop(0)


def test_every_part_asks_for_what_there_is_and_what_matters_most_comes_first(h200):
    for part in h200.PARTS:
        if part.benchmark == sampling_report.NAME:  # it is measured whole
            assert (part.tables, part.contenders, part.repeats) == ((), (), None)
            continue
        benchmark = registry.load(part.benchmark)
        assert set(part.tables) <= {*(table.name for table in benchmark.tables), "profile"}
        assert set(part.contenders) <= {name for table in benchmark.tables for name in table.contenders}
    order = list(dict.fromkeys(part.benchmark for part in h200.PARTS))
    assert order[:4] == [beside.NAME, LADDER, ABLATION, MATRIX]
    assert {"p09", "p10"} <= set(order)


def test_results_of_before_are_kept_but_never_put_over_newer_ones(h200, tmp_path):
    before, out = tmp_path / "before", tmp_path / "out"
    for name, text in (("p01", "old"), ("p02", "old")):
        (before / "h200" / name).mkdir(parents=True)
        (before / "h200" / name / results.FILE).write_text(text)
    (out / "h200" / "p02").mkdir(parents=True)
    (out / "h200" / "p02" / results.FILE).write_text("new")
    h200.keep(before, out)
    assert [(out / "h200" / name / results.FILE).read_text() for name in ("p01", "p02")] == ["old", "new"]


def test_without_vllm_its_part_is_left_out_and_a_failure_does_not_end_the_others(h200, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(h200, "PARTS", (h200.PARTS[0], h200.Part("p01", "random:nothing", "bfloat16"), h200.PARTS[1]))
    monkeypatch.setattr(sys, "argv", ["h200.py", "--out", str(tmp_path), "--commit", "abc", "--before", str(tmp_path)])
    assert h200.main() == 1
    said = capsys.readouterr().out
    assert said.count("left out, no --vllm DIR") == 2 and "p01" in said and "FAILED" in said
