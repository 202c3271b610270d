"""A run of a phase, step by step, inside its lesson: the page that `gradus xray` writes, in a frame.

The frame shows the page's compact form. Its events lead to the book's own pages of the code.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from book import contents, sources
from book.contents import ROOT
from book.progress import progress
from gradus.cli.commands.xray import LANES
from gradus.config.options import FINAL
from gradus.course.xray.scenes import SCENES

PHASES = (*(name for name in SCENES if name != FINAL), *sorted(LANES))
SECTION = """
## Step through a run

```{{raw}} html
<iframe class="xray{short}" src="../../xray/{phase}.html?compact" title="A run of {phase}, by steps" loading="lazy">
</iframe>
<p><a href="../../xray/{phase}.html">The whole page of this run</a></p>
```

Press *Next*, or *Play*. *Predict* hides what comes next and asks you first. `gradus xray {phase}` makes this page,
{own}.
"""
OWN = {
    False: "of your own prompts as well (`--prompts`)",
    True: "with your functions as well (`--impl exercises/{phase}`)",
}
"""Further uses of the command, by whether the phase is one of LANES."""


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_runs)
    app.connect("source-read", add_section)


def add_section(app: Sphinx, page: str, text: list[str]) -> None:
    """Before the lesson's measurements, where what was built has been run."""
    phase = contents.lesson_of(page)
    if phase in PHASES:
        short = "" if phase in LANES or SCENES[phase].settings else " short"
        own = OWN[phase in LANES].format(phase=phase)
        text[0] = contents.before_measurements(page, text[0], SECTION.format(phase=phase, short=short, own=own))


def write_runs(app: Sphinx) -> None:
    """Before the pages are read, so that the files which the runs lead to get pages, too.

    Raises ExtensionError with what the command said, where it fails.
    """
    for phase in sorted(contents.lessons_among(app.config.include_patterns).intersection(PHASES)):
        progress.say(f"running {phase}, for its steps")
        file = Path(app.outdir, "xray", f"{phase}.html")
        file.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "gradus", "xray", phase, "--out", str(file)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            raise ExtensionError(f"gradus xray {phase}: {done.stderr.strip()}")
        text = file.read_text(encoding="utf-8")
        sources.linked |= code_of(text)
        file.write_text(CODE.sub(r'data-code="../source/{path}.html#L-{line}"', text), encoding="utf-8")


CODE = re.compile(r'data-code="[^"]*"')
DATA = re.compile(r'id="recordings"[^>]*>(.*?)</script>', re.DOTALL)


def code_of(page: str) -> set[str]:
    """The files that a run's events lead to."""
    found = DATA.search(page)
    assert found is not None, "a page of `gradus xray` has its recordings"
    return {place["path"] for run in json.loads(found[1]) for place in run["code"].values() if place["path"]}
