"""The figures in the repository are what the code draws, and what they show is true."""

import math
import os
import re
from functools import cache
from xml.etree import ElementTree

import pytest

from gradus.course.drawing import MARGIN, WIDTH, Drawing
from gradus.course.figures import every, first
from gradus.course.figures.serving import load
from gradus.course.xray.scenes import SCENES
from tests.course.conftest import ROOT
from tests.phases.conftest import build_engine
from tests.phases.drive import run, steps
from tests.phases.test_promises import SHAPE, ask

STALE = "is stale: run python -m gradus.course.figures"


@cache
def drawn(figure: every.Figure) -> Drawing:
    """The figure, drawn once: some take seconds."""
    return figure.draw()


@pytest.mark.parametrize("figure", every.FIGURES, ids=lambda figure: figure.path)
def test_a_committed_figure_is_what_the_code_draws(figure):
    assert (ROOT / figure.path).read_text(encoding="utf-8") == drawn(figure).svg(), f"{figure.path} {STALE}"


@pytest.mark.parametrize("figure", every.FIGURES, ids=lambda figure: figure.path)
def test_a_figure_is_shown_on_a_page_beside_it(figure):
    folder = (ROOT / figure.path).parent.parent
    pages = [*folder.glob("*.md"), ROOT / "README.md"]
    shown = [f"]({os.path.relpath(ROOT / figure.path, page.parent)})" in page.read_text("utf-8") for page in pages]
    assert any(shown)


@pytest.mark.parametrize("figure", every.FIGURES, ids=lambda figure: figure.path)
def test_a_figure_is_well_formed_says_what_it_shows_and_keeps_within_its_frame(figure):
    drawing = drawn(figure)
    root = ElementTree.fromstring(drawing.svg())
    assert root.find("{http://www.w3.org/2000/svg}title").text == drawing.title
    for shape in root.iter("{http://www.w3.org/2000/svg}rect"):
        right, bottom = (float(shape.get(a)) + float(shape.get(b)) for a, b in (("x", "width"), ("y", "height")))
        assert right <= WIDTH + MARGIN and bottom <= drawing.height + MARGIN
    for text in root.iter("{http://www.w3.org/2000/svg}text"):  # a quarter of its size is below its line
        assert float(text.get("y")) + float(text.get("font-size")) / 4 <= drawing.height + MARGIN


def test_words_too_small_for_half_size_are_refused():
    with pytest.raises(AssertionError, match="half size"):
        Drawing("small print", 10).words(0, 0, "small", size=9)


@pytest.mark.parametrize(("phase", "continuous"), [("p02", False), ("p03", True)])
def test_the_timeline_is_what_the_schedulers_do(phase, continuous):
    engine = build_engine(phase, SHAPE, first.SLOTS)
    for name, length in first.REQUESTS.items():
        engine.submit(ask(name, max_tokens=length))
    ran = []
    for step in steps(engine):
        slots = [""] * first.SLOTS
        for span in step.spans:
            slots[span.slot] = span.request_id
        ran.append(slots)
    assert ran == first.timeline(continuous)


def test_the_rectangle_has_the_filler_that_its_caption_counts():
    drawing = first.padded()
    filler, rows = map(int, re.search(r"(\d+) of (\d+) rows are filler", drawing.title).groups())
    hatched = sum("url(#hatch)" in shape for shape in drawing.shapes)
    cells = sum(shape.startswith("<rect") for shape in drawing.shapes) - hatched  # hatching is a second rectangle
    assert (filler, rows) == (hatched - 1, cells - 3)  # the legend has one of each kind
    wanted = [(len(prompt), len(answer)) for prompt, answer in first.BATCH.values()]
    scene = [(asked.length - asked.output, asked.output) for asked in SCENES["p02"].asked]
    assert wanted == scene[: len(wanted)], "the lesson's text and x-ray have the same three"
    assert (rows, filler) == counted_by_p02(wanted)


def counted_by_p02(wanted: list[tuple[int, int]]) -> tuple[int, int]:
    """Rows, and those of filler, for one batch of (tokens in, tokens out)."""
    engine = build_engine("p02", SHAPE, len(wanted))
    run(engine, [ask(str(i), prompt=[5] * prompt, max_tokens=out) for i, (prompt, out) in enumerate(wanted)])
    return engine.metrics().rows, engine.metrics().padding_rows


def test_the_lessons_second_answer_counts_as_the_engine_does():
    """A prompt of 5 wants one token, a prompt of 1 wants three."""
    lesson = (ROOT / "phases/p02_static_batching/README.md").read_text(encoding="utf-8")
    rows, filler = map(int, re.search(r"In all there are (\d+) rows, and (\d+) are filler", lesson).groups())
    assert (rows, filler) == counted_by_p02([(5, 1), (1, 3)])


def test_the_best_bound_lies_between():
    """Here, where the figure of the same simulation is drawn: it takes seconds."""
    found = load.routed()
    late = [each.ttft[1] for _, each in found]
    best = late.index(min(late))
    assert 0 < best < len(found) - 1 and math.isinf(found[-1][0])
    hits = [each.hits for _, each in found]
    assert hits[0] == min(hits) and max(hits) - hits[-1] < 0.01
