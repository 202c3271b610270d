"""results.json: what goes in comes out; and what is made from it is checked against it."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradus.bench import command, registry, report
from gradus.bench.declare.declaration import FIRST_ROW, Benchmark, Row, Table
from gradus.bench.predict.prediction import cached
from gradus.bench.record import pages, plots, results
from gradus.bench.record.metrics import spread
from gradus.bench.record.prose import ACCOUNT, account, fill, loose_numbers
from gradus.bench.record.results import Cell, Entry, Results, Run
from gradus.bench.studies import beside
from gradus.bench.workloads import single_stream
from gradus.errors import ConfigError

ROOT = Path(__file__).parents[2]

BENCHMARK = Benchmark(
    question="Is it fast?",
    prediction="As fast as memory.",
    policy=cached,
    tables=(
        Table(
            name="length",
            title="Longer answers",
            axis="tokens",
            rows=tuple(Row(f"{length}", length, single_stream(8, length)) for length in (200, 500, 800)),
            contenders=("p00", "p01"),
            columns=("itl_ms", "padding"),
            against="p00",
        ),
    ),
)


def sample(seconds: float, tokens: int = 200) -> dict:
    return {
        "seconds": seconds, "output_tokens": tokens, "completed": 1, "rows": 400, "padding_rows": 100,
        "itl_ms": {"p50": 1e3 * seconds / tokens, "p99": 9.0},
        "ttft_ms": {"p50": 5.0}, "e2e_ms": {"p50": 1e3 * seconds},
    }  # fmt: skip


def floor(seconds: float) -> dict:
    return {"seconds": seconds, "output_tokens": 200, "ttft_p50": 0.1, "itl_p50": 0.01, "e2e_p50": seconds}


def made(quick: bool = False) -> Results:
    cells = [
        Cell("length", row, float(row), 1, {"what": "one request", "digest": "d"}, [
            Entry("p00", floor(1.0), [sample(4.0), sample(4.2), sample(3.9)]),
            Entry("p01", floor(0.5), [sample(2.0), sample(2.1), sample(1.9)]),
        ])
        for row in ("200", "500", "800")
    ]  # fmt: skip
    cells[1].entries[0] = Entry("p00", floor(1.0), skipped="out of memory")
    fingerprint = {
        "hardware": {"processor": "a CPU"},
        "rates": {
            "read_gb_s": 17.1, "copy_gb_s": 15.0, "float32_tflop_s": 0.1, "bfloat16_tflop_s": 0.2, "launch_us": 3.0,
        },
        "versions": {"torch": "2"},
    }  # fmt: skip
    profile = {
        "contender": "p01", "device": "cpu", "context": 256, "batch": 1, "step_ms": 2.0, "device_ms": 1.5,
        "kernels": 300, "prefill_ms": 9.0, "top": [["aten::mm", 61.0, 120]], "idle_percent": 25.0,
    }  # fmt: skip
    settings = {"commit": "abc", "quick": quick}
    run = Run("random:tiny-llama", "float32", "cpu", fingerprint, settings, cells, [profile])
    return Results("cpu", "p01", [run])


@pytest.fixture
def reports(tmp_path, monkeypatch) -> Path:
    """A folder of reports with one results file, and the benchmark that it belongs to."""
    monkeypatch.setattr(registry, "load", lambda name: BENCHMARK)
    results.write(results.path(tmp_path, "cpu", "p01"), made())
    return tmp_path


def test_results_come_back_as_they_were_written(tmp_path):
    file = tmp_path / "cpu" / "p01" / "results.json"
    size = results.write(file, made())
    assert results.read(file) == made()
    assert size == file.stat().st_size
    assert json.loads(file.read_text())["schema"] == results.SCHEMA


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no results file"),
        ("[]", "no results file"),
        ('{"schema": 99}', "results of schema 99, this version reads 1"),
        ('{"schema": 1, "hardware": "cpu", "benchmark": "p01", "runs": [{"model": "m"}]}', "no results file"),
    ],
)
def test_what_is_no_results_file_is_refused_in_one_line(tmp_path, text, complaint):
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as refusal:
        results.read(file)
    assert "\n" not in str(refusal.value)


def test_a_cell_and_a_run_replace_those_of_the_same_name():
    found = made()
    run = found.runs[0]
    again = Cell("length", "200", 200.0, 1, {"digest": "new"})
    run.put(again)
    assert run.cell("length", "200") is again and len(run.cells) == 3
    found.put(Run("random:tiny-llama", "float32", "cpu", {}, {}))
    assert len(found.runs) == 1 and not found.runs[0].cells
    found.put(Run("random:tiny-llama", "bfloat16", "cpu", {}, {}))
    assert len(found.runs) == 2


def test_processes_with_models_of_their_own_share_a_file(tmp_path):
    """Each puts its run in as often as it likes; none takes another's away."""
    with ThreadPoolExecutor(8) as pool:  # each opens the file and its lock anew, as processes would
        for model in "abcdefgh" * 3:
            pool.submit(results.update, tmp_path, "cpu", "p01", Run(model, "float32", "cpu", {}, {"commit": "x"}))
    found = results.read(results.path(tmp_path, "cpu", "p01"))
    assert sorted(run.model for run in found.runs) == list("abcdefgh")
    assert [file.name for file in (tmp_path / "cpu" / "p01").iterdir()] == [results.FILE]


# -- reports -----------------------------------------------------------------------------------------------------------


def test_the_table_shows_the_median_the_spread_the_speed_up_and_the_prediction():
    text = report.table_of(made().runs[0], BENCHMARK.tables[0])
    rows = [[word.strip() for word in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == ["tokens", "", "tok/s", "speed-up", "predicted", "ratio", "ITL ms", "padding rows"]
    assert rows[2] == ["200", "p00 Baseline", "50 (47.6–51.3)", "1×", "200", "4", "20", "25 %"]
    assert rows[3] == ["", "p01 KV cache", "100 (95.2–105)", "2×", "400", "4", "10", "25 %"]
    assert rows[4] == ["500", "p00 Baseline", "–", "", "200", "", "", ""]
    assert "p00 Baseline, 500: not measured, out of memory." in text


def test_a_report_is_current_once_it_is_made_and_stale_when_a_sample_changes(reports):
    assert {stale.file.name for stale in report.outdated(reports)} == {"report.md", "length.svg"}
    assert command.report(reports, say=lambda _: None) == 2
    assert not list(report.outdated(reports))

    found = made()
    found.runs[0].cells[0].entries[1].samples[0]["seconds"] = 1.0
    found.runs[0].cells[0].entries[1].samples[1]["seconds"] = 1.0
    results.write(results.path(reports, "cpu", "p01"), found)
    assert {stale.file.name for stale in report.outdated(reports)} == {"report.md", "length.svg"}


def test_an_edited_report_is_stale(reports):
    command.report(reports, say=lambda _: None)
    file = reports / "cpu" / "p01" / "report.md"
    file.write_text(file.read_text().replace("100 (95.2–105)", "200 (95.2–205)"))
    assert [stale.file for stale in report.outdated(reports)] == [file]
    assert command.report(reports, check=True, say=lambda _: None) == 1
    assert "200 (95.2–205)" in file.read_text(), "checking changes nothing"


def renewed(page: Path) -> str:
    (stale,) = report.outdated_pages(page.parent, [page])
    report.update(stale)
    return page.read_text()


def test_a_page_gets_its_tables_and_is_stale_when_they_are_not_the_results(reports):
    page = reports / "README.md"
    page.write_text("Before.\n\n<!-- results:begin p01/length -->\nold\n<!-- results:end -->\nAfter.\n")
    text = renewed(page)
    assert "| 200 | p00 Baseline | 50 (47.6–51.3) |" in text and "(cpu/p01/length.svg)" in text
    assert "old" not in text and text.startswith("Before.") and text.endswith("After.\n")
    assert not list(report.outdated_pages(reports, [page]))
    page.write_text(text.replace("| 2× |", "| 3× |"))
    assert [stale.file for stale in report.outdated_pages(reports, [page])] == [page]


def test_a_page_may_have_a_tables_chart_alone_with_the_way_to_the_report(reports):
    page = reports / "README.md"
    page.write_text("<!-- results:begin p01/length/chart -->\nold\n<!-- results:end -->\n")
    shown = renewed(page).splitlines()
    assert shown[2].startswith("![") and shown[2].endswith("](cpu/p01/length.svg)")
    assert "](cpu/p01/report.md)" in shown[4] and "|" not in page.read_text() and "old" not in page.read_text()
    page.write_text("<!-- results:begin p01/nothing/chart -->\n<!-- results:end -->\n")
    with pytest.raises(ConfigError, match="no table 'nothing'"):
        list(report.outdated_pages(reports, [page]))


@pytest.mark.parametrize(("before", "field", "after"), [
    ("7.5", "speedup", "2"), ("24", "padding", "25 %"), ("24 %", "padding", "25 %"),
])  # fmt: skip
def test_a_number_in_a_page_with_its_field_is_renewed_with_its_sign(reports, before, field, after):
    page = reports / "README.md"
    page.write_text(f"It is {before}<!-- cpu/p01: length/200/p01/{field} --> of them, in 9 words.\n")
    assert renewed(page) == f"It is {after}<!-- cpu/p01: length/200/p01/{field} --> of them, in 9 words.\n"
    assert not list(report.outdated_pages(reports, [page]))


def test_a_parts_sum_beyond_the_step_is_explained_and_only_there(reports):
    found = made()
    profile = {"contender": "p01", "context": 16, "step_ms": 2.0, "kernels": 9, "top": [], "idle_percent": 0.0}
    for device_ms, said in ((1.9, False), (2.1, True)):
        found.runs[0].profiles = [profile | {"device_ms": device_ms}]
        results.write(results.path(reports, "cpu", "p01"), found)
        command.report(reports, say=lambda _: None)
        text = (reports / "cpu" / "p01" / "report.md").read_text()
        assert ("operations can add up to more than the step" in text) == said


def test_a_page_that_asks_for_what_does_not_exist_is_refused(reports):
    page = reports / "README.md"
    for wanted in ("p99", "p01/nothing"):
        page.write_text(f"<!-- results:begin {wanted} -->\n<!-- results:end -->\n")
        with pytest.raises(ConfigError, match=f"results:begin {wanted}"):
            list(report.outdated_pages(reports, [page]))
    for wanted in ("cpu/p09: length/200/p01/speedup", "cpu/p01: length/300/p01/speedup"):
        page.write_text(f"It is 2<!-- {wanted} --> times.\n")
        with pytest.raises(ConfigError, match=wanted.partition(": ")[2]):
            list(report.outdated_pages(reports, [page]))


# -- figures -----------------------------------------------------------------------------------------------------------


def test_figures_of_one_row_and_of_many_are_the_same_every_time_and_transparent():
    one = made()
    del one.runs[0].cells[1:]
    pictures = [report.picture_of(each, each.runs[0], BENCHMARK.tables[0]) for each in (made(), one)]
    assert [picture.kind for picture in pictures] == ["lines", "levels"]
    for picture in pictures:
        svg = plots.draw(picture)
        assert svg == plots.draw(picture) and picture.digest() in svg
        assert "p01 KV cache" in svg and "<dc:date>" not in svg
        assert "#ffffff" not in svg and "fill: white" not in svg


def test_two_points_are_a_table_and_no_curve():
    found = made()
    del found.runs[0].cells[2]
    assert not list(report.figures(found, BENCHMARK))
    assert "![" not in report.render(found, BENCHMARK)
    assert len(list(report.figures(made(), BENCHMARK))) == 1


# -- prose -------------------------------------------------------------------------------------------------------------


def test_sentences_are_filled_from_the_samples():
    text = (
        "p01 makes {length/200/p01/output_tok_s} tok/s, {length/200/p01/speedup} times the baseline; predicted were "
        "{length/200/p01/predicted}. Memory reads {rates/read_gb_s} GB/s; {profile/p01/top} takes "
        "{profile/p01/top_percent} %. {random:tiny-llama, float32: length/200/p00/itl_ms} ms."
    )
    assert fill(text, made(), BENCHMARK) == (
        "p01 makes 100 tok/s, 2 times the baseline; predicted were 400. Memory reads 17.1 GB/s; `aten::mm` takes 61 %. "
        "20 ms."
    )


def test_a_row_may_have_a_stroke_in_its_name():
    found = made()
    found.runs[0].cells[0].row = "8/s"
    assert fill("{length/8/s/p01/output_tok_s}", found, BENCHMARK) == "100"


@pytest.mark.parametrize(
    "field",
    ["length/200/p09/output_tok_s", "length/300/p01/output_tok_s", "length/500/p00/speedup", "profile/p00/kernels",
     "rates/nothing", "other model, float32: length/200/p01/itl_ms", "length/200/p01/nothing"],
)  # fmt: skip
def test_a_sentence_that_quotes_what_was_not_measured_is_refused(field):
    with pytest.raises(ConfigError, match="the results have no"):
        fill(f"It took {{{field}}}.", made(), BENCHMARK)


def test_numbers_that_nothing_backs_are_found():
    assert loose_numbers("p01 took 20 ms in bf16 on the H200, {length/200/p01/itl_ms} of them; 3.5x more.") == [
        "20",
        "3.5",
    ]


def test_a_metric_that_nobody_measured_has_no_spread():
    assert spread([{"seconds": 1.0, "output_tokens": 5}], "peak_mb") is None


# -- what is committed -------------------------------------------------------------------------------------------------


def test_the_committed_reports_figures_and_pages_are_what_the_results_say():
    stale = [*report.outdated(ROOT / "reports"), *report.outdated_pages(ROOT / "reports", pages.pages(ROOT))]
    assert not [str(page.file) for page in stale], "run: gradus report"


def test_every_committed_figure_of_a_report_is_one_that_the_results_have():
    drawn = {
        found_in / name
        for found in results.find(ROOT / "reports")
        for found_in in [ROOT / "reports" / found.hardware / found.benchmark]
        for name, _ in report.figures_of(found)
    }
    assert drawn == set((ROOT / "reports").rglob("*.svg"))


def test_the_committed_results_are_small_and_none_is_a_quick_look():
    files = list((ROOT / "reports").rglob("*.*"))
    sizes = {file: file.stat().st_size for file in files if file.is_file()}
    assert not {file: size for file, size in sizes.items() if file.name == results.FILE and size > results.MAX_BYTES}
    assert sum(sizes.values()) <= results.MAX_ALL_BYTES
    assert not [run.title for found in results.find(ROOT / "reports") for run in found.runs if run.settings["quick"]]


def test_the_prose_on_results_has_no_number_of_its_own():
    steps = [registry.load(name).step for name in registry.names()]
    folders = [file.parent for file in (ROOT / "reports").rglob(ACCOUNT)]
    assert len(folders) > 20 and not [text for text in steps if loose_numbers(text)]
    for folder in folders:
        assert (folder / results.FILE).exists(), "a text on results that are not there is shown nowhere"
        assert not [text for text in account(folder) if loose_numbers(text)], folder


@pytest.mark.parametrize("name", [*registry.names(), beside.NAME])
def test_a_benchmark_is_complete(name):
    benchmark = registry.load(name)
    assert benchmark.question.endswith("?") and benchmark.prediction
    assert len({table.name for table in benchmark.tables}) == len(benchmark.tables)
    for table in benchmark.tables:
        assert all(
            registry.policy_of(contender) for contender in table.contenders if not contender.startswith(beside.THEIRS)
        )
        assert set(table.gpu_only) < {*table.contenders, ""} and (not table.panels or len(table.rows) == 1)
        assert len({row.label for row in table.rows}) == len(table.rows)
        assert table.against in (None, FIRST_ROW, *table.contenders)
