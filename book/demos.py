"""A phase's demo inside its lesson: the question that it answers, the chart, and what the chart says.

The runs are recorded (benchmarks/lessons/demos.py), so a book that is built on a busy machine shows the same. Importing
this takes no Sphinx: the tests ask it.
"""

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from book import contents
from gradus.course.views import charts
from gradus.course.views.demos import DEMOS, Recorded, recorded

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HEADING = "See what it changes"
SECTION = """
## {heading}

**{question}** {workload}, in {before} and in {phase}:

```{{raw}} html
<p><img class="demo" src="../../demo/{phase}.svg" alt="{alt}"></p>
```

{look}

{table}

One run each of {model} on {machine}. Sizes differ from one machine to the next, and between two runs: `gradus demo
{phase}` runs both on yours.
"""


def setup(app: "Sphinx") -> None:
    app.connect("builder-inited", draw_all)
    app.connect("source-read", add_section)


def draw_all(app: "Sphinx") -> None:
    """Draw the charts without a title: the question stands above them."""
    for phase in sorted(contents.lessons_among(app.config.include_patterns) & DEMOS.keys()):
        demo = DEMOS[phase]
        file = Path(app.outdir, "demo", f"{phase}.svg")
        charts.draw(file, recorded(phase).shown.series, "", demo.across, demo.up, demo.chart)


def add_section(app: "Sphinx", page: str, text: list[str]) -> None:
    """Before the lesson's measurements, where what was built has been run."""
    phase = contents.lesson_of(page)
    if phase in DEMOS:
        text[0] = contents.before_measurements(page, text[0], section(recorded(phase)))


def section(found: Recorded) -> str:
    shown, demo = found.shown, found.shown.demo
    rows = [("", demo.before, demo.phase, ""), ("---", "---:", "---:", "---"), *shown.table]
    return SECTION.format(
        heading=HEADING,
        question=demo.question,
        workload=demo.workload,
        before=demo.before,
        phase=demo.phase,
        alt=escape(f"{demo.up}, by {demo.across}: {demo.before} and {demo.phase}"),
        look=demo.look,
        table="\n".join(f"| {' | '.join(row)} |" for row in rows),
        model=found.model,
        machine=found.machine,
    )
