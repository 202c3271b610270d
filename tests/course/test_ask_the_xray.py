"""The answers under "Ask the X-ray" are what the recorded runs show: each bold number is counted here again."""

import json
import os
import re
import shlex
import sys
from functools import cache

import pytest

from gradus import phases
from gradus.course.xray.lanes import messages, ranks
from tests.course.conftest import PHASES, ROOT
from tests.course.test_xray import recording, tiered
from tests.forked import run_forked

HEADING = "### Ask the X-ray\n"
QUESTIONS = 3
FOLDED = re.compile(r"<details>\n<summary>Answers</summary>\n(.*?)</details>", re.DOTALL)
NUMBERED = re.compile(r"^(\d)\. (.*?)(?=^\d\. |\Z)", re.MULTILINE | re.DOTALL)


@cache
def asked(phase: str) -> str:
    text = (phases.find(phase).path / "README.md").read_text(encoding="utf-8")
    assert text.count(HEADING) == 1, f"{phase} has no questions for the X-ray"
    return re.split(r"^#", text.partition(HEADING)[2], maxsplit=1, flags=re.MULTILINE)[0]


def answers(phase: str) -> list[list[str]]:
    """The bold words of each answer, without the sentence's period."""
    (folded,) = FOLDED.findall(asked(phase))
    return [[bold.rstrip(".") for bold in re.findall(r"\*\*(.*?)\*\*", text)] for _, text in NUMBERED.findall(folded)]


def frames(phase: str) -> list[dict]:
    return recording(phase).frames


def rows(phase: str) -> list[int]:
    """Rows of each step that has a plan."""
    return [frame["rows"] for frame in frames(phase) if frame["rows"] is not None]


def spans(phase: str, step: int, name: str | None = None) -> list[dict]:
    return [span for span in frames(phase)[step - 1]["spans"] if name in (None, span["id"])]


def tokens(phase: str, step: int) -> int:
    return sum(len(out) for out in frames(phase)[step - 1]["outputs"].values())


def steps_of(phase: str, name: str) -> list[int]:
    """The steps in which a sequence runs."""
    return [frame["number"] for frame in frames(phase) if any(span["id"] == name for span in frame["spans"])]


def events(phase: str, kind: str) -> list[tuple[int, str]]:
    return [(frame["number"], event["text"]) for frame in frames(phase) for event in frame["events"]
            if event["kind"] == kind]  # fmt: skip


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


# -- what each run shows -----------------------------------------------------------------------------------------------


def p00() -> list[list]:
    return [[sum(rows("p00"))], [steps_of("p00", "Cy")[0] - 1], [spans("p00", 4)[0]["start"]]]


def p01() -> list[list]:
    out = sum(tokens("p01", step) for step in range(1, 5))
    computed = sum(len(span["tokens"]) for step in range(1, 5) for span in spans("p01", step)) - 3
    assert len(rows("p01")) == out == 4 and sum(rows_beside("p01", "p00")) == 18
    return [[sum(rows("p01"))], [spans("p01", 4)[0]["start"]], [computed]]


def rows_beside(scene: str, phase: str) -> list[int]:
    return [frame["rows"] for frame in recording(phase, scene).frames if frame["rows"] is not None]


def p02() -> list[list]:
    computed = sum(len(span["tokens"]) for frame in frames("p02") for span in frame["spans"])
    assert sum(rows("p02")) == 47
    last = max(frame["number"] for frame in frames("p02") if frame["rows"] == 3)
    return [[sum(rows("p02")) - computed], [last], [steps_of("p02", "d")[0]]]


def p03() -> list[list]:
    slot = spans("p03", 4, "Cy")[0]["slot"]
    owned = [step for step in steps_of("p03", "Ben") if spans("p03", step, "Ben")[0]["slot"] == slot]
    alone = [frame for frame in frames("p03") if len(frame["spans"]) == 1]
    return [[slot, len(owned)], [rows("p03")[3], tokens("p03", 4)], [len(alone)]]


def p04() -> list[list]:
    full = next(frame["number"] for frame in frames("p04") if frame["pages"]["free"] == 0)
    before, after = frames("p04")[6]["tables"], frames("p04")[7]["tables"]
    freed, grown = len(before["Ben"][0]), len(after["Ann"][0]) - len(before["Ann"][0])
    assert frames("p04")[7]["pages"]["free"] == 2 == freed - grown
    return [[full], [freed, grown], [len(spans("p04", 12, "Ben")[0]["tokens"])]]


def p05() -> list[list]:
    reused = sum(numbers(text.partition(" reuses ")[2])[0] for _, text in events("p05", "hit"))
    evicted = [found for step, text in events("p05", "eviction") for found in (*numbers(text), step)]
    return [[reused], [len(spans("p05", 3, "Cy")[0]["tokens"])], [evicted[0], evicted[2]]] if len(evicted) == 4 else []


def p06() -> list[list]:
    chunks = [
        span for frame in frames("p06") for span in frame["spans"] if span["id"] == "Ben" and "c" in span["kind"][0]
    ]
    assert [len(span["tokens"]) for span in chunks] == [7, 7, 6]
    return [[len(chunks)], [sum(span["logits"] for span in spans("p06", 3))], [len(spans("p06", 4, "Cy")[0]["tokens"])]]


def p07() -> list[list]:
    plans = [[[(s["id"], s["start"], s["tokens"] if s["kind"] != "decode" else 1, s["logits"]) for s in frame["spans"]]
              for frame in recording(name, "p07").frames] for name in ("p07", "p06")]  # fmt: skip
    differ = sum(one != other for one, other in zip(*plans, strict=True))
    held = {recording(name, "p07").frames[4]["pages"]["held"] for name in ("p07", "p06")}
    return [[differ], [*held], [rows("p07")[1], rows("p07")[6]]]


def p08() -> list[list]:
    verified = [span for frame in frames("p08") for span in frame["spans"] if span["kind"] == "verify"]
    drafts, kept = sum(len(span["tokens"]) - 1 for span in verified), sum(span["accepted"] for span in verified)
    several = [frame["number"] for frame in frames("p08") if len(frame["outputs"].get("Ben", ())) > 1]
    assert several == [5, 6, 10]
    return [[drafts, kept], [len(frames("p08")[5]["outputs"]["Ben"])], [len(steps_of("p08", "Ben"))]]


def p10() -> list[list]:
    unknown = next(frame["number"] for frame in frames("p10") if any(-1 in span["tokens"] for span in frame["spans"]))
    out = sum(len(frame["outputs"].get("Cy", ())) for frame in frames("p10"))
    assert frames("p10")[4]["in_flight"] == [5] and frames("p10")[0]["committed"] is None
    vain = [step for step, text in events("p10", "vain") if "Cy" in text]
    assert vain == [7]
    return [[frames("p10")[4]["committed"]], [unknown], [out, len(vain)]]


def p11() -> list[list]:
    cy, ben = ([d for frame in frames("p11") for d in frame["masks"] if d["id"] == name] for name in ("Cy", "Ben"))
    assert [frame["number"] for frame in frames("p11") if any(d["id"] == "Cy" for d in frame["masks"])][:2] == [1, 2]
    forced = sum(draw["legal"] == 1 for draw in ben)
    return [[cy[0]["legal"], cy[1]["legal"]], [f"{100 * cy[0]['probability']:.2g}%"], [forced, len(ben)]]


def p12() -> list[list]:
    recorded = ranks.record("random:tiny-llama")
    table = {frame["number"]: frame["rows"] for frame in recorded.frames}
    one, two = recorded.acts[-2].length, recorded.acts[-1].length
    assert f"{two / one:.2f}" == "1.32"
    return [[table[10][0][3]], [table[12][1][4]], [f"{one:,}", f"{two:,}"]]


def p13() -> list[list]:
    shown = [frame["rows"][0] for frame in messages.record("random:tiny-llama").frames]
    place = {(row[3], row[4]): index for index, row in reversed([*enumerate(shown)])}
    begun, taken, read = (place["Cy", what] for what in ("sends the request", "takes the request", "reads a frame"))
    alone = sum((row[3], row[4]) == ("Ann", "step") for row in shown[begun:taken])
    assert sum(row[4] == "step" for row in shown[begun:read]) == 3
    let_in = shown[place["Cy", "lets it in, encodes, sends it on"]]
    return [[alone], [read - begun - 1], [let_in[1]]]


def p14() -> list[list]:
    read = [frame["experts"]["rows"] for frame in frames("p14") if frame["experts"]]
    experts = [len({expert for row in taken for expert in row}) for taken in read]
    third = [expert for row in read[2] for expert in row]
    return [[experts[6]], [experts[1], experts[2]], [max(map(third.count, third))]]


SHOWN = {"p00": p00, "p01": p01, "p02": p02, "p03": p03, "p04": p04, "p05": p05, "p06": p06, "p07": p07, "p08": p08,
         "p10": p10, "p11": p11, "p12": p12, "p13": p13, "p14": p14}  # fmt: skip


NUMBER = {"add_rms_norm_kernel": 9, "merge_parts_kernel": 4}  # of four layers: two for each and the last, one for each


def test_every_lesson_asks():
    assert {*SHOWN, "p09"} == {*PHASES}


@pytest.mark.parametrize("phase", PHASES)
def test_a_lesson_asks_three_questions_and_says_where_to_look(phase):
    part = asked(phase)
    questions = NUMBERED.findall(FOLDED.sub("", part))
    assert len(questions) == len(answers(phase)) == QUESTIONS and all(answers(phase))
    assert all(text.count("?") and text.rstrip().endswith((".)", "?")) for _, text in questions)
    (command,) = re.findall(r"page of `(gradus xray .*?)`", part)
    assert shlex.split(command)[2] == phase


@pytest.mark.parametrize("phase", SHOWN)
def test_the_answers_are_what_the_recording_shows(phase):
    assert answers(phase) == [[str(one) for one in found] for found in SHOWN[phase]()]


def test_the_answers_on_p05_s_tiers_are_what_the_recording_shows():
    page = (phases.find("p05").path / "tiers.md").read_text(encoding="utf-8")
    part = re.split(r"^#", page.partition(HEADING)[2], maxsplit=1, flags=re.MULTILINE)[0]
    (folded,) = FOLDED.findall(part)
    said = [re.findall(r"\*\*(.*?)\*\*", text) for _, text in NUMBERED.findall(folded)]
    found = {event["kind"]: event for event in tiered().frames[9]["events"]}
    up, down = (len(found[kind]["pages"]) for kind in ("fetch", "eviction"))
    below = up * tiered().settings["page_size"]
    hit = numbers(found["hit"]["text"].partition(" reuses ")[2])[0]
    lost = [(frame["number"], numbers(event["text"])[0]) for frame in tiered().frames for event in frame["events"]
            if event["kind"] == "lost"]  # fmt: skip
    gone, steps = sum(count for _, count in lost), [step for step, _ in lost]
    assert said == [[str(one) for one in shown] for shown in ([hit - below, below], [down, up], [gone, *steps])]
    assert "`gradus xray p05 --host-pages 4`" in part


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> list[dict[str, dict]]:
    """The kernels of each step of p09, by name. Triton decides at its import whether it interprets, so this run has a
    process of its own."""
    pytest.importorskip("triton")
    page = tmp_path_factory.mktemp("p09") / "page.html"
    command = [sys.executable, "-m", "gradus", "xray", "p09", "--model", "random:tiny-llama", "--out", str(page)]
    done = run_forked(command, cwd=ROOT, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    (data,) = re.findall(
        r"<script[^>]*application/json[^>]*>(.*?)</script>", page.read_text(encoding="utf-8"), re.DOTALL
    )
    found = json.loads(data)
    (recorded,) = found if isinstance(found, list) else found["recordings"]
    return [{one["name"]: one for one in frame["kernels"]} for frame in recorded["frames"] if frame["kernels"]]


@pytest.mark.slow
def test_an_x_ray_of_p09_shows_the_kernels_of_each_step(seen):
    names = {name.removesuffix("_kernel") for kernels in seen for name in kernels}
    assert names == {"paged_attention", "attend_part", "merge_parts", "add_rms_norm"}
    launches = {name: {kernels[name]["launches"] for kernels in seen if name in kernels} for name in NUMBER}
    assert launches == {name: {number} for name, number in NUMBER.items()}


@pytest.mark.slow
def test_p09_s_answers_are_what_its_kernels_did(seen):
    parts = [step + 1 for step, kernels in enumerate(seen) if "attend_part_kernel" in kernels]
    assert parts == [*range(parts[0], len(seen) + 1)]
    (norms,) = {kernels["add_rms_norm_kernel"]["launches"] for kernels in seen}
    attending = seen[3]["paged_attention_kernel"]["programs"]
    assert answers("p09") == [[str(parts[0])], [str(norms)], [str(attending)]]
