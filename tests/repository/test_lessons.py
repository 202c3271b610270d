"""The promises of every lesson: questions with answers, tables that fit, steps that can be read."""

import re
import shlex
from pathlib import Path

import pytest

from gradus import LLM, SamplingParams, phases
from gradus.bench.record.prose import loose_numbers
from gradus.bench.report import BLOCK, INLINE
from gradus.cache.usage import CacheUsage
from gradus.course.views.difference import difference
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.measures import cache_stats

ROOT = Path(__file__).parents[2]
LESSONS = {phase.name: ROOT / "phases" / phase.folder / "README.md" for phase in phases.available()}
LESSONS |= {"p00, part 1": ROOT / "phases" / "p00_baseline" / "forward_pass.md"}
PARTS = {f"{page.parent.name}/{page.stem}": page for page in (ROOT / "phases").glob("*/*.md") if page.stem != "README"}
MOST_COLUMNS = 5
MOST_RESULTS = 0.1  # of a lesson's lines
QUESTIONS = 4
MOST_CODE = 100  # columns of a line of code: as many as the book shows without a cut on a screen of 1440 px
MOST_CHANGED = 500  # lines that `gradus diff` shows
STATS = re.compile(r"^```text stats\n(.*?)^```", re.MULTILINE | re.DOTALL)
FOLDED = re.compile(r"<details>\n<summary>Answers</summary>\n(.*?)</details>", re.DOTALL)


def section(text: str, heading: str) -> str:
    found = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def questions_and_answers(part: str) -> tuple[int, int]:
    """How many numbered questions a section asks, and how many its folded answers answer."""
    answers = "".join(FOLDED.findall(part))
    numbered = re.compile(r"^\d+\. ", re.MULTILINE)
    return len(numbered.findall(FOLDED.sub("", part))), len(numbered.findall(answers))


def unbacked(part: str) -> list[str]:
    """Numbers in a section's sentences that no result renews, and that name no row of its tables or of its fields."""
    tables = "".join(found[0] for found in BLOCK.finditer(part))
    labels = re.sub(r"^(\| *[^|]*\|).*$", r"\1", tables, flags=re.MULTILINE)  # of a row its first cell
    labels += " ".join(field for _, _, field in INLINE.findall(part))  # output-length/500/p01/speedup
    prose = re.sub(r"U\[.*?\]", "", INLINE.sub("", BLOCK.sub("", part)))
    return [number for number in loose_numbers(prose) if number.rstrip(".,") not in re.findall(r"[\d.,]*\d", labels)]


def wide_tables(text: str) -> list[str]:
    """The heads of tables with more columns than fit a page."""
    heads = re.findall(r"^(\|.*\|)\n\|[\s:|-]+\|$", text, re.MULTILINE)
    return [head for head in heads if head.count("|") - 1 > MOST_COLUMNS]


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_question_has_a_folded_answer(lesson):
    text = LESSONS[lesson].read_text(encoding="utf-8")
    asked, answered = questions_and_answers(section(text, "Predict"))
    assert asked == answered >= 3
    assert questions_and_answers(section(text, "Check yourself")) == (QUESTIONS, QUESTIONS)


@pytest.mark.parametrize("part", PARTS)
def test_every_question_of_a_further_page_has_a_folded_answer(part):
    text = PARTS[part].read_text(encoding="utf-8")
    for heading in ("Predict", "Check yourself"):
        asked, answered = questions_and_answers(section(text, heading))
        assert asked == answered


def silent_steps(text: str) -> list[str]:
    """The steps of "Build it" that show no output."""
    steps = re.split(r"^### (.*)$", section(text, "Build it"), flags=re.MULTILINE)
    return [name for name, step in zip(steps[1::2], steps[2::2], strict=True) if "```text printed\n" not in step]


@pytest.mark.parametrize("lesson", [phase.name for phase in phases.available()])
def test_every_step_of_a_lesson_shows_what_it_prints(lesson):
    text = LESSONS[lesson].read_text(encoding="utf-8")
    assert "```text printed\n" in section(text, "Build it") and not silent_steps(text)


@pytest.mark.parametrize("lesson", LESSONS)
def test_results_take_a_small_part_of_a_lesson(lesson):
    text = LESSONS[lesson].read_text(encoding="utf-8")
    results = sum(found[0].count("\n") for found in BLOCK.finditer(text))
    assert results <= MOST_RESULTS * text.count("\n")


@pytest.mark.parametrize("lesson", LESSONS)
def test_tables_fit_a_page(lesson):
    assert not wide_tables(LESSONS[lesson].read_text(encoding="utf-8"))


def long_lines(text: str) -> list[str]:
    """Lines of code or output that are cut on a screen of usual width. Formulas are no code."""
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for kind, block in blocks if kind != "math" for line in block.splitlines()]
    return [line for line in lines if len(line) > MOST_CODE]


@pytest.mark.parametrize(
    "page", sorted((ROOT / "phases").rglob("*.md")), ids=lambda page: f"{page.parent.name}-{page.stem}"
)
def test_no_line_of_code_is_cut(page):
    assert not long_lines(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("lesson", LESSONS)
def test_what_a_lesson_measured_is_renewed_with_its_results(lesson):
    assert not unbacked(section(LESSONS[lesson].read_text(encoding="utf-8"), "What we measured"))


def stats_shown(text: str) -> list[str]:
    """Names of /stats in a page's excerpts from `gradus load`."""
    return re.findall(r"^([a-z_.]+) +\S+ → ", "".join(STATS.findall(text)), re.MULTILINE)


@pytest.mark.parametrize("lesson", [f"p0{number}" for number in range(7)])
def test_the_stats_that_a_lesson_shows_exist(lesson):
    server, cache = EngineClient(ServerConfig()).stats(), cache_stats(CacheUsage(1, 1, 0, 0, 1, 0, 1))
    shown = stats_shown(LESSONS[lesson].read_text(encoding="utf-8"))
    assert len(shown) >= 2 and set(shown) <= set(server) | {f"cache.{name}" for name in cache or ()}


def test_no_figure_is_claimed_outside_a_table():
    claims = section((ROOT / "docs" / "results.md").read_text(encoding="utf-8"), "What is claimed, and what is not")
    assert len(claims) > 100 and not re.findall(r"\d+\.\d+", claims)


def test_the_checks_of_lessons_catch():
    part = "1. One?\n2. Two?\n\n<details>\n<summary>Answers</summary>\n\n1. Yes.\n\n</details>\n"
    assert questions_and_answers(part) == (2, 1)
    shown = "## Build it\n\n### one\n\n```text printed\n1\n```\n\n### two\n\n```text\n2\n```\n\n## Read\n\n### three\n"
    assert silent_steps(shown) == ["two"]
    assert stats_shown("```text stats\nrows  0 → 9\ncache.held  0 → 1\n```\nrows  0 → 9\n") == ["rows", "cache.held"]
    tables = "<!-- results:begin p01 -->\n| 64 | p01 | 5.4 |\n<!-- results:end -->\n"
    prose = "With 64 it gains 5.4 times, 2.1<!-- cpu/p01: a/b/c/d --> at most."
    assert unbacked(f"{prose}\n{tables}") == ["5.4"]
    assert unbacked("With 64 rows it gains 2.1<!-- cpu/p01: a/64/c/d --> times, with 65 more.") == ["65"]
    fenced = "```{0}\n{1}\n```\n"
    assert long_lines(fenced.format("python", "x" * 101)) == ["x" * 101]
    assert not long_lines(fenced.format("text", "x" * 100) + "x" * 101 + "\n" + fenced.format("math", "x" * 101))
    wide = "| a | b | c | d | e | f |\n|---|---|---|---|---|---|\n| 1 | 2 | 3 | 4 | 5 | 6 |\n"
    assert len(wide_tables(wide)) == 1 and not wide_tables("| a | b |\n|---|---:|\n| 1 | 2 |\n")


@pytest.mark.parametrize(("old", "new"), [(f"p0{n}", f"p0{n + 1}") for n in range(6)])
def test_a_step_of_the_course_can_be_read_in_a_sitting(old, new):
    assert len(difference(phases.find(old), phases.find(new))) <= MOST_CHANGED


def prompts() -> set[str]:
    """List the prompts of the lessons' `gradus generate` commands, except where --ignore-eos is given."""
    text = "".join(page.read_text(encoding="utf-8") for page in [*LESSONS.values(), *PARTS.values()])
    lines = re.findall(r"^gradus generate .*$", re.sub(r" \\\n +", " ", text), re.MULTILINE)
    return {shlex.split(line)[2] for line in lines if "--ignore-eos" not in line}


@pytest.mark.weights("smollm2-135m")
def test_the_model_goes_on_with_every_prompt_that_a_lesson_gives_it():
    """An answer that ends at once shows nothing: SmolLM2 has no more to say after "Write a poem about the sea."."""
    with LLM("smollm2-135m", device="cpu", dtype="float32") as llm:
        answers = llm.generate(sorted(prompts()), SamplingParams(max_tokens=40))
    assert answers and all(len(answer.token_ids) == 40 for answer in answers)


def test_triton_lines_that_a_lesson_shows_are_the_phases():
    folder = LESSONS["p09"].parent
    source = "".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.py")))
    shown = re.findall(r"^```python\n(.*?)^```$", LESSONS["p09"].read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in shown for line in block.splitlines() if line.strip()]
    assert len(lines) > 5 and not [line for line in lines if line not in source]
