"""The README's first screens: short, and true in what they show."""

import re
from pathlib import Path

import pytest

from gradus import LLM, SamplingParams
from tests.pairwise import first

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short():
    assert len(README.splitlines()) <= 120


def test_it_opens_with_what_this_is_a_picture_three_numbers_and_a_command():
    top = README[: README.index("make serve\n") + 1]
    assert top.index("inference engine") < top.index("![") < top.index("|---|") < top.index("## Try it")
    assert top[top.index("|---|") :].count("\n| ") == 3


def test_the_course_begins_where_a_student_begins():
    course = README[README.index("## The course") :]
    first = re.search(r"\]\((phases/[^)]+)\)", course)
    assert first is not None and first[1] == "phases/p00_baseline/forward_pass.md"


def test_workloads_beside_vllm_are_counted_as_the_table_has_them():
    page = (ROOT / "docs" / "comparisons.md").read_text(encoding="utf-8")
    block = page[page.index("<!-- results:begin beside-vllm -->") :]
    head, _, *rows = re.findall(r"^\| (.*) \|$", block[: block.index("<!-- results:end -->")], re.MULTILINE)
    column = head.split(" | ").index("ratio")
    ratios = [float(row.split(" | ")[column].removesuffix("×")) for row in rows]
    found = re.search(r"faster than vLLM on (\d+) of (\d+) workloads", README)
    assert found is not None
    assert (int(found[1]), int(found[2])) == (sum(ratio > 1 for ratio in ratios), len(ratios))


def test_what_make_says_is_what_it_is_shown_to_say():
    shown = README[README.index("$ make serve") :]
    shown = shown[: shown.index("```")]
    sources = (ROOT / "Makefile").read_text() + "".join(
        path.read_text() for path in (ROOT / "src/gradus").glob("*/*.py")
    )
    for words in (
        "Installing into",
        "(once, for half a minute or more)",
        "Compiling the CPU kernels meanwhile (once, for some seconds) …",
    ):
        assert words in shown and words in sources


@pytest.mark.weights("smollm2-135m")
@pytest.mark.parametrize("dtype", first(["auto", "float32"]))  # in bfloat16, two first tokens have the same logit
def test_the_answers_are_the_models(dtype):
    with LLM("smollm2-135m", device="cpu", dtype=dtype) as llm:
        (answer,) = llm.chat([{"role": "user", "content": "What is the capital of France?"}])
        assert f"> What is the capital of France?\n{answer.text.strip()}\n" in README
        prompt, tokens = re.search(r'"prompt": "(.*?)", "max_tokens": (\d+)', README).groups()
        (story,) = llm.generate(prompt, SamplingParams(max_tokens=int(tokens)))
        shown = re.search(r'"text":"(.*?) …', README)[1]
        assert story.text.startswith(shown) and len(shown) > 40
