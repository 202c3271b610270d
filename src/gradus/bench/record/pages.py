"""The pages that show results, and the marks by which a page says which result belongs where.

A pair of comments encloses a table, which a report replaces:

    <!-- results:begin p02 -->              all tables and figures of p02, one model per hardware
    <!-- results:begin p02/batch-size -->   one of them
    <!-- results:begin p02/batch-size/chart -->  only its chart, for each hardware
    <!-- results:begin ladder -->           the ladder
    <!-- results:begin beside-vllm -->      both engines, all models in one table
    <!-- results:begin beside-vllm/sampling -->  the same for one section
    <!-- results:begin speculation/chart -->  a study's first chart
    <!-- results:begin speculation/open/chart -->  another, by its name
    <!-- results:begin agents -->           a script's results (`scripts`)
    <!-- results:begin speedrun/cpu-2 -->    a class of the speedrun, from the logs in reports/speedrun
    <!-- results:end -->

A number in a page's own sentences is followed by its field (`prose`), and is replaced as well:

    the final engine replays 178<!-- h200/p10: profile/final/kernels --> per step
"""

import re
from pathlib import Path

INLINE = re.compile(r"\d[\d.,]*(?: %)?(<!-- ([\w-]+/[\w-]+): ([^<>]+) -->)")
BLOCK = re.compile(r"^(<!-- results:begin ([\w/.-]+) -->\n).*?^(<!-- results:end -->)", re.DOTALL | re.MULTILINE)


def pages(repository: Path) -> list[Path]:
    """The README, the lessons and the documentation."""
    return sorted([repository / "README.md", *repository.glob("docs/**/*.md"), *repository.glob("phases/*/*.md")])
