"""Each demo shows its phase's idea: by rows, steps and a clock that only rows move, never by the real one."""

import ast
import math
import re

import pytest

from gradus.bench.contenders.workbench import EngineContender, Workbench
from gradus.bench.record.plots import GREY
from gradus.course.views import charts, demos, forms
from gradus.course.views.demos import DEMOS, Figure, compared, shown
from gradus.course.xray.choices import MaskWatch
from gradus.errors import ConfigError
from tests.bench.virtual import virtual  # noqa: F401  # the clock, as a fixture
from tests.cli.conftest import gradus  # noqa: F401  # the command line, as a fixture


@pytest.fixture(scope="module")
def tiny():
    return Workbench.open("random:tiny-llama", "cpu", "float32")


@pytest.fixture
def both(tiny, virtual, monkeypatch):  # noqa: F811
    """both("p04"): what the phase before and the phase did, in virtual time."""
    build = EngineContender.build

    def built(contender):
        build(contender)
        virtual(contender.engine)

    monkeypatch.setattr(EngineContender, "build", built)
    return lambda phase: [demos.observe(name, DEMOS[phase], tiny) for name in (DEMOS[phase].before, phase)]


def read(figure: Figure, both) -> tuple[float, float]:
    before, after = (figure.read(seen) for seen in both)
    return before, after


def test_p01_keeps_its_rate_where_p00_slows_down(both):
    before, after = seen = both("p01")
    assert read(demos.ROWS, seen) == (sum(range(16, 16 + 97)), 16 + 96)
    slowing, steady = ([rate for _, rate in demos.rates(one)] for one in (before, after))
    assert slowing == sorted(slowing, reverse=True) and slowing[-1] < 0.5 * slowing[0]
    assert steady[-1] == pytest.approx(steady[0])
    assert all(new > old for old, new in zip(slowing, steady, strict=True))


def test_p02_reads_the_weights_in_fewer_steps_and_computes_filler(both):
    seen = both("p02")
    alone, together = read(demos.STEPS, seen)
    assert alone == sum(map(len, seen[0].run.token_times)) and together == max(map(len, seen[1].run.token_times))
    assert alone > 8 * together
    none, padding = read(demos.PADDING, seen)
    assert none == 0 and padding > 10
    assert [max(one.at_once) for one in seen] == [1, 16]


def test_p03_has_no_padding_and_ends_in_fewer_steps(both):
    seen = both("p03")
    padding, none = read(demos.PADDING, seen)
    assert padding > 10 and none == 0
    static, continuous = read(demos.STEPS, seen)
    assert continuous < static
    _, after = seen
    assert after.at_once[: len(after.at_once) // 2] == [4] * (len(after.at_once) // 2)
    slow, fast = read(demos.RATE, seen)
    assert fast > slow


def test_p03_shows_no_figure_that_one_run_cannot_settle():
    """Its gain in tokens per second is within what two runs differ by; steps and padding are counted."""
    assert demos.RATE not in DEMOS["p03"].figures and DEMOS["p03"].figures == (demos.PADDING, demos.STEPS)


def test_p04_runs_more_sequences_in_the_same_memory(both):
    seen = both("p04")
    slots, pages = read(demos.AT_ONCE, seen)
    assert slots == 768 // 256 and pages > 3 * slots
    slow, fast = read(demos.RATE, seen)
    assert fast > 1.5 * slow


def test_p05_computes_the_shared_prefix_once(both):
    seen = both("p05")
    whole, shared = read(demos.ROWS, seen)
    assert whole - shared == 6 * 256
    late, early = read(demos.TTFT, seen)
    assert early < late / 3
    first, again = (one.first_tokens[0] for one in seen)
    assert first == pytest.approx(again)  # nothing is there yet to be found


def test_p06_cuts_the_worst_gap_and_the_prompt_pays(both):
    seen = both("p06")
    worst, cut = read(demos.WORST, seen)
    assert cut < worst / 3
    quick, slow = read(demos.LONGEST, seen)
    assert slow > quick


def test_p11_leaves_few_tokens_and_names_the_likeliest(tiny):
    demo = DEMOS["p11"]
    shown = demos.run(demo, tiny)
    vocabulary = tiny.model.config.vocab_size
    assert {y for _, y in shown.series["p10"]} == {math.log10(vocabulary)}
    head, formed, _, title, *rows, _, cost = shown.transcript.splitlines()
    assert head.startswith("freely: ") and title.startswith("may come")
    text = ast.literal_eval(formed.removeprefix("in a form: "))
    assert re.fullmatch(demo.work.structured["regex"], text)
    assert len(rows) == len(shown.series["p11"]) == len(text) + 1, "a byte per token, and the end"
    legal = [round(10**y) for _, y in shown.series["p11"]]
    begins = len('{"name": "')
    assert legal[:begins] == [1] * begins and legal[begins] == 26 and legal[-1] == 1
    for count, row in zip(legal, rows, strict=True):
        assert int(row.split()[0]) == count and row.endswith(" forced") == (count == 1)
    capital = re.findall(r"'([A-Z])'", rows[begins])
    assert capital[0] == text[begins], "greedy takes the likeliest that may come"
    share = 100 * legal.count(1) / len(legal)
    found = {name: (before, after) for name, before, after, _ in shown.table}
    assert found["tokens that are forced"] == ("0 %", demos.shown(share, "%"))
    assert found["tokens that may come, median"][0] == str(vocabulary)
    assert re.fullmatch(r"A token took [\d.]+ ms freely and [\d.]+ ms in the form \(medians of this run\)\.", cost)


def test_p11_draws_the_same_answer_watched_or_not(tiny, monkeypatch):
    """The times are of a run that no observer slows; the draws of another one."""
    watched, drew = [], MaskWatch.drew
    monkeypatch.setattr(MaskWatch, "drew", lambda *args: watched.append(1) or drew(*args))
    seen = forms.answer("p11", DEMOS["p11"].work, tiny)
    assert [choice.drawn for choice in seen.choices] == list(seen.tokens)
    assert len(seen.tokens) <= len(watched) <= len(seen.tokens) + 1, "one run, with a step in vain"
    assert len(seen.run.token_times[0]) == len(seen.tokens)


# -- charts and words --------------------------------------------------------------------------------------------------


def test_a_plot_puts_points_where_they_belong():
    text = charts.plot({"p00": [(0, 0.0), (10, 5.0)], "p01": [(0, 10.0), (10, 10.0)]}, "tokens", "rate")
    head, *rows, axis, ends = text.splitlines()
    assert head == "rate   ○ p00   ● p01" and len(rows) == charts.HEIGHT
    first, last = rows[0], rows[-1]
    assert first == f"     10 │●{' ' * (charts.WIDTH - 2)}●" and last == "      0 │○"
    middle = next(row for row in rows if "○" in row)
    assert middle.index("○") == len(first) - 1
    assert axis.startswith("        └──") and ends.endswith("10  tokens")


def test_areas_are_as_high_as_their_values():
    places = range(charts.WIDTH)
    text = charts.areas({"p02": [(x, 1.0) for x in places], "p03": [(x, 4.0) for x in places]}, "step", "at once")
    lines = text.splitlines()
    full = "█" * charts.WIDTH
    assert [full in line for line in lines[1:5]] == [False, False, False, True]
    assert [full in line for line in lines[6:10]] == [True] * 4


def test_bars_are_as_long_as_their_values():
    text = charts.bars({"p04": [(1, 200.0), (2, 100.0)], "p05": [(1, 200.0), (2, 50.0)]}, "request", "ms")
    lengths = [line.count("█") for line in text.splitlines()[1:]]
    assert lengths == [charts.BAR, charts.BAR, charts.BAR // 2, charts.BAR // 4]


@pytest.mark.parametrize("chart", sorted(charts.TEXTS))
@pytest.mark.parametrize("suffix", charts.SUFFIXES)
def test_a_figure_is_written_as_its_suffix_says(tmp_path, chart, suffix):
    file = tmp_path / "new" / f"figure{suffix}"
    charts.draw(file, {"p04": [(1, 2.0), (2, 1.0)], "p05": [(1, 1.0), (2, 0.5)]}, "a title", "x", "y", chart)
    assert file.read_bytes().startswith({".png": b"\x89PNG", ".svg": b"<?xml"}[suffix])


@pytest.mark.parametrize(
    ("more", "before", "after", "says"),
    [
        (True, 10.0, 26.0, "2.6 times as many"),
        (True, 26.0, 10.0, "2.6 times fewer"),
        (True, 10.0, 10.2, "about the same"),
        (False, 24.8, 0.0, "none left"),
        (False, 49152.0, 2.0, "24,576 times fewer"),
        (False, 0.0, 0.0, "the same"),
    ],
)
def test_a_comparison_says_which_way_it_went(more, before, after, says):
    gains, loses = ("as many", "fewer") if more else ("fewer", "as many")
    assert compared(Figure("", "", lambda seen: 0, more, gains, loses), before, after) == says


@pytest.mark.parametrize(
    ("value", "unit", "says"),
    [(4451.2, "ms", "4,451 ms"), (41.23, "", "41.2"), (0, "%", "0 %"), (3, "", "3"), (110.0, "", "110")],
)
def test_numbers_are_as_long_as_they_need_to_be(value, unit, says):
    assert shown(value, unit) == says


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_shows_chart_and_table_and_writes_the_figure(gradus, tmp_path):  # noqa: F811
    file = tmp_path / "p04.svg"
    done = gradus("demo", "p04", "--model", "random:tiny-llama", "--out", str(file))
    assert done.code == 0, done.err
    assert "p03 Continuous batching, then p04 Paged cache" in done.out
    assert "sequences that run" in done.out and "most sequences at once" in done.out
    assert done.out.splitlines()[-1] == str(file) and file.is_file()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["p08"], "there are demos of p01, p02, p03, p04, p05, p06, p07, p09, p11, p12, p13, p14, none of p08"),
        (["p04", "--out", "p04.jpg"], "p04.jpg: the figure's name must end with .png or .svg"),
        (["p04", "--model", "random:nothing"], "no shape named 'nothing'"),
    ],
)
def test_a_mistake_is_one_line(gradus, arguments, complaint):  # noqa: F811
    done = gradus("demo", *arguments)
    assert done.code == 2 and complaint in done.err and done.err.count("\n") == 1


def test_a_figure_in_svg_has_no_background_and_words_that_dark_pages_show_too(tmp_path):
    file = tmp_path / "figure.svg"
    charts.draw(file, {"p04": [(1, 2.0)], "p05": [(1, 1.0)]}, "a title", "x", "y", "bars")
    text = file.read_text(encoding="utf-8")
    assert "#ffffff" not in text and ">a title</text>" in text and GREY in text


@pytest.mark.parametrize("phase", DEMOS)
def test_a_demo_says_its_work_in_words(phase):
    said = DEMOS[phase].workload
    assert said[0] in "0123456789O" and "U[" not in said


def test_there_is_no_demo_of_what_is_not_there():
    with pytest.raises(ConfigError, match="none of p99"):
        demos.demo_of("p99")
