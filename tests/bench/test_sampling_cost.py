"""The cost of sampling parameters: measured on a tiny model, and derived from samples small enough to check."""

from dataclasses import replace

import pytest

from gradus.bench import command
from gradus.bench.measure.drive import ContenderFailed, check_completions
from gradus.bench.record import plots, results
from gradus.bench.record.results import Cell, Entry, Results, Run
from gradus.bench.studies import sampling_cost, sampling_report
from gradus.bench.studies.sampling_cost import Size
from gradus.bench.studies.sampling_report import EVERYTHING, PLAIN, TABLES, more_us, ratios
from gradus.engine.logprobs import TokenLogprob
from gradus.engine.request import SamplingParams
from gradus.models.shapes import SHAPES
from gradus.text.completion import Completion
from tests.bench.conftest import RATES, TINY
from tests.cli.conftest import gradus  # noqa: F401  # the command line, as a fixture

FLAT, PEAKED = TABLES


@pytest.fixture
def small(monkeypatch, known_machine):
    """Two sizes that take no time."""
    monkeypatch.setattr(sampling_cost, "QUICK", {"cpu": (Size(1, 4, 3, rounds=2), Size(2, 4, 2, rounds=2))})


# -- measuring ---------------------------------------------------------------------------------------------------------


def test_a_quick_run_measures_every_cell_and_writes_the_report(gradus, tmp_path, small):  # noqa: F811
    done = gradus("bench", "sampling", "--quick", "--repeats", "1", "--out", str(tmp_path), *TINY)
    assert done.code == 0, done.err
    folder = tmp_path / "cpu" / "sampling"
    assert done.out.strip() == str(folder / "report.md")
    (run,) = results.read(folder / "results.json").runs
    assert [(cell.table, cell.row) for cell in run.cells] == [(FLAT, "1"), (PEAKED, "1"), (FLAT, "2"), (PEAKED, "2")]
    for cell in run.cells:
        assert [len(entry.samples) for entry in cell.entries] == [2] + [1] * (len(cell.entries) - 1), "a round"
        tokens = cell.workload["output_tokens"]
        assert {sample["output_tokens"] for entry in cell.entries for sample in entry.samples} == {tokens}
        assert cell.workload["logits_bytes"] == cell.batch * SHAPES["tiny-llama"].vocab_size * 4
    assert run.dtype == "float32" and run.settings["quick"]
    assert "not to be quoted" in (folder / "report.md").read_text()
    assert {file.name for file in folder.iterdir()} == {"report.md", "results.json", f"{FLAT}.svg", f"{PEAKED}.svg"}
    assert command.report(tmp_path, check=True) == 0


def test_every_parameter_that_shapes_a_draw_is_measured_and_all_of_them_together():
    every = sampling_cost.parameters(100)
    used = {name for asked in every.values() for name in asked}
    unchanging = {"max_tokens", "temperature", "seed", "n", "stop", "stop_token_ids", "min_tokens", "ignore_eos"}
    unchanging.add("structured")  # a mask costs what its grammar does: docs/design/p11.md
    unchanging.add("prompt_logprobs")  # a pass over the prompt, and no draw
    assert used == set(SamplingParams.__dataclass_fields__) - unchanging
    assert set(every[EVERYTHING]) == used and not every[PLAIN] and next(iter(every)) == PLAIN
    assert len(every["bias on 20 tokens"]["logit_bias"]) == 20


def test_every_round_has_the_plain_draw_on_both_sides_and_every_other_goes_backwards():
    order = list(sampling_cost._order([PLAIN, "a", "b"], 3))
    assert order == [PLAIN, "a", "b", PLAIN, PLAIN, "b", "a", PLAIN, PLAIN, "a", "b", PLAIN]


def test_a_run_that_brought_less_than_it_was_asked_for_does_not_count():
    asked = SamplingParams(max_tokens=2, logprobs=1)
    whole = Completion("r", 0, 0, "", (1, 2), (_logprob(1), _logprob(1)), "length", None, 4, 0, None)
    check_completions([whole], [asked])
    for broken in (
        replace(whole, token_ids=(1,)),
        replace(whole, logprobs=None),
        replace(whole, logprobs=(_logprob(1),)),
        replace(whole, logprobs=(_logprob(1), _logprob(0))),
    ):
        with pytest.raises(ContenderFailed, match="r: "):
            check_completions([broken], [asked])
    with pytest.raises(ContenderFailed, match="got 1 tokens instead of 2: timeout"):
        check_completions([replace(whole, token_ids=(1,), finish_reason="timeout")], [asked])


def _logprob(count):
    return TokenLogprob(1, -0.5, ((1, -0.5),) * count)


def test_a_run_on_a_gpu_is_measured_when_every_size_is_there_of_that_commit(tmp_path):
    asked = tmp_path, "h200", "random:tiny-llama", "float32"
    assert not sampling_cost.is_measured(*asked, "abc")
    partly = found()
    results.write(results.path(tmp_path, "h200", "sampling"), partly)
    assert not sampling_cost.is_measured(*asked, "abc")
    for size in sampling_cost.SIZES["cuda"]:
        for table in TABLES:
            partly.runs[0].put(cell(table, size.batch, [1.0, 1.0]))
    results.write(results.path(tmp_path, "h200", "sampling"), partly)
    assert sampling_cost.is_measured(*asked, "abc") and not sampling_cost.is_measured(*asked, "def")


# -- what follows from the samples -------------------------------------------------------------------------------------


def cell(table: str, batch: int, plain_s: list[float], **others: list[float]) -> Cell:
    """Make a cell of `batch` requests with 100 tokens each; in `others`, underscores replace spaces."""
    what = {
        "what": "requests", "requests": batch, "output_tokens": 100 * batch, "logits_bytes": 1_000_000 * batch,
    }  # fmt: skip
    seconds = {PLAIN: plain_s} | {name.replace("_", " "): values for name, values in others.items()}
    entries = [
        Entry(name, samples=[{"seconds": value, "output_tokens": 100 * batch} for value in values])
        for name, values in seconds.items()
    ]
    return Cell(table, str(batch), batch, batch, what, entries)


def found(alone: float = 1.02, device: str = "cuda") -> Results:
    cells = [
        cell(FLAT, 1, [1.0, 1.0], cut=[1.01], everything_at_once=[alone]),
        cell(PEAKED, 1, [1.0, 1.0], cut=[1.01], everything_at_once=[1.0]),
        cell(FLAT, 8, [1.0, 3.0, 2.0, 2.0], cut=[3.0, 3.4], everything_at_once=[2.0, 2.02]),
        cell(PEAKED, 8, [2.0, 2.0, 2.0, 2.0], cut=[2.02, 2.04], everything_at_once=[2.0, 2.0]),
    ]
    machine = {"hardware": {}, "rates": RATES, "versions": {}}
    run = Run("random:tiny-llama", "float32", device, machine, {"commit": "abc", "quick": False}, cells)
    return Results("h200", "sampling", [run])


def test_a_ratio_is_to_the_mean_of_the_plain_runs_on_both_sides_of_it():
    measured = found().runs[0].cell(FLAT, "8")
    assert ratios(measured, "cut") == [1.5, 1.7]
    assert ratios(measured, PLAIN) == [0.5, 1.5, 1.0, 1.0]
    assert more_us(measured, "cut") == pytest.approx([10_000, 14_000])


def test_the_table_has_for_each_batch_the_ratio_the_difference_and_the_rate():
    header, rows = sampling_report.table_of(found().runs[0].of(FLAT))
    assert header == ["", "batch 1: times plain", "more µs", "tok/s", "batch 8: times plain", "more µs", "tok/s"]
    assert rows[0] == [PLAIN, "1×", "", "100", "1× (0.5–1.5)", "", "400"]
    assert rows[1] == ["cut", "1.01×", "100", "99", "1.6× (1.5–1.7)", "12,000", "251"]


def test_the_report_says_what_is_dear_where_the_shape_matters_and_whether_the_goal_is_reached():
    text = "\n".join(part for part in sampling_report.STUDY.report(found()) if isinstance(part, str))
    assert "each at its dearest: *cut* 1.6× (batch 8, temperature 1). Alone" in text
    assert "*cut*: at batch 8, 12,000 µs per step more than the plain draw at temperature 1, and 300 µs at" in text
    assert "takes 1.02× at temperature 1 and 1× at temperature 0.1; at most 1.03× was asked: reached." in text
    assert "takes 100 µs at batch 1 and 800 µs at batch 8." in text
    missed = "\n".join(part for part in sampling_report.STUDY.report(found(alone=1.04)) if isinstance(part, str))
    assert "1.04× at temperature 1 and 1× at temperature 0.1; at most 1.03× was asked: missed." in missed


def test_nothing_is_said_of_the_goal_on_a_cpu_or_of_shapes_before_both_are_measured():
    half = found(device="cpu")
    half.runs[0].cells = half.runs[0].cells[:1]
    text = "\n".join(part for part in sampling_report.STUDY.report(half) if isinstance(part, str))
    assert "was asked" not in text
    assert "## What the shape" not in text and "Nothing costs more than 5 % over the plain draw." in text


def test_the_figure_has_a_row_per_parameter_and_a_dot_per_batch():
    (name, flat), (_, peaked) = sampling_report.STUDY.figures(found(), "NVIDIA H200")
    assert name == f"{FLAT}.svg" and flat.digest() != peaked.digest()
    assert [(series.name, series.y[0]) for series in flat.series] == [
        ("batch 1", pytest.approx(1)), ("batch 8", pytest.approx(60)),
    ]  # fmt: skip
    svg = plots.draw(flat)
    assert all(f">{text}</text>" in svg for text in ("cut", EVERYTHING, "batch 1", "batch 8"))
    assert PLAIN not in [label for _, label in flat.labels] and svg == plots.draw(flat)
