"""The live X-ray's view in headless Chromium: what it draws, says and does; and the scripts that it shares."""

import base64
import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from gradus.course.xray.page import page
from gradus.server.xray import view

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

HOSTILE = "</script><img src=x onerror=errors.push('run')><b>"

HARNESS = """
const errors = [], report = [], asked = [];
window.addEventListener("error", (event) => errors.push(event.message));
window.addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
window.requestAnimationFrame = (paint) => setTimeout(paint, 16); // frames that keep to the virtual time
const note = (value) => report.push(value);
const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const text = (selector) => document.querySelector(selector).innerText.replace(/\\s+/g, " ").trim();
const shown = (part) => document.querySelector(`[data-part=${part}]`).offsetParent !== null;
const point = (part, x, y) => {
  const canvas = document.querySelector(`[data-part=${part}] canvas`), box = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y, bubbles: true }));
  return text(`[data-part=${part}] .pointed`);
};
const colors = (part) => { // how many different ones a canvas shows
  const canvas = document.querySelector(`[data-part=${part}] canvas`);
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(data.buffer)).size;
};
const tell = () => {
  const textContent = JSON.stringify({ errors, report });
  document.body.replaceChildren(Object.assign(document.createElement("pre"), { id: "told", textContent }));
};
let feed = null;
const encoder = new TextEncoder();
const send = (event) => feed.enqueue(encoder.encode(`data: ${JSON.stringify(event)}\\n\\n`));
let answer = (signal) => {
  const start = (made) => {
    feed = made;
    signal.addEventListener("abort", () => made.error(new DOMException("", "AbortError")));
  };
  return new Response(new ReadableStream({ start }));
};
const open = async (signal, path) => { asked.push(path); return answer(signal, path); };
"""


@pytest.fixture
def drawn(tmp_path):
    """drawn(script, width) → what the script noted; skipped without Chromium. No time passes while nothing happens."""
    if BROWSER is None:
        pytest.skip("needs Chromium")

    def draw(script: str, width: int = 1280) -> list:
        doing = f"(async () => {{ {script} }})().catch((error) => errors.push(String(error.stack))).finally(tell);"
        # Chromium's window has a least width, so a narrow page is a narrow section
        style = f"<style>* {{ box-sizing: border-box }} body {{ margin: 0 }} {view.style()}</style>"
        begin = "const it = startXray(document.getElementById('x'), open);"
        text = (
            f"<!doctype html><meta charset=utf-8>{style}<body><section id=x style='width:{width}px'></section>"
            f"<script>(() => {{ {HARNESS}\n{view.script()}\n{begin}\n{doing} }})();</script>"
        )
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
        flags += ["--window-size=1700,1000", "--virtual-time-budget=300000", "--dump-dom"]
        uri = (tmp_path / "page.html").as_uri()
        done = subprocess.run([BROWSER, *flags, uri], capture_output=True, text=True, timeout=120)
        told = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
        assert told, f"the script came to no end: {done.stderr[-1000:]}"
        found = json.loads(unescape(told[1]))
        assert found["errors"] == []
        return found["report"]

    return draw


def whole(sequences: int, pages: int = 3000, **more) -> dict:
    """A whole picture of a busy engine: a third of its pages are free, cached and held; the last one is shared."""
    states = bytes([0, 1, 2] * (pages // 3))[:-1] + b"\3"
    rows = [[slot, 100 + slot, 90, slot % 8 > 0, 7, 3] for slot in range(sequences)]
    times = [
        (step * 2000, step * 2000 + 100, step * 2000 + 300, step * 2000 + 300, step * 2000 + 1800) for step in range(40)
    ]
    steps = [
        [number, *spans, spans[-1] + 50, sequences, sequences, 64 * (number % 4 == 0), sequences, 0, 0, 0, 0, 0, 2]
        for number, spans in enumerate(times if sequences else ())
    ]
    return {
        "state": "ready", "reason": "ready", "whole": True, "time": 80000,
        "about": {"model": "a model", "engine": "final", "device": "cuda"},
        "numbers": {"running": sequences, "waiting": 2, "cache_use": 0.5, "hit_rate": 0.25},
        "counts": [states.count(state) for state in range(4)], "rows": rows, "waiting": 2 if sequences else 0,
        "queue": [[1500, 0], [20, -3]] if sequences else [], "steps": steps,
        "tree": [[-1, 0, 10, 10, 4, 2, 2], [0, 10, 30, 30, 0, 0, 0], [0, 10, 5, 5, 5, 1, 0]] if sequences else [],
        "pages": {"count": pages, "size": 16, "states": base64.b64encode(states).decode()},
        "own": {"rows": {"1": "gen-own"}, "queue": {"1": "gen-next"}} if sequences else {"rows": {}, "queue": {}},
    } | more  # fmt: skip


def sent(event: dict) -> str:
    return f"await wait(10); send({json.dumps(event)}); await wait(100);"


WIDE = "const box = document.getElementById('x'); note(box.scrollWidth <= box.clientWidth + 1);"


@pytest.mark.parametrize("width", [320, 390, 800, 1600])
@pytest.mark.parametrize("sequences", [0, 1, 256])
def test_it_draws_any_batch_at_any_width(drawn, sequences, width):
    pages = 240_000 if sequences == 256 else 3000
    numbers = f"note(text('.numbers').includes('running {sequences} ')); note(text('[data-part=pages] .legend'));"
    script = sent(whole(sequences, pages)) + WIDE + numbers + "note(colors('pages') > 3); note(colors('batch') > 1);"
    fits, running, legend, colored, drew = drawn(script, width)
    assert fits and running and colored and drew
    third = pages // 3
    assert legend.startswith(f"{third:,} free {third:,} cached {third - 1:,} held 1 shared")


def test_pointing_says_what_is_there_and_whose_it_is(drawn):
    script = (
        sent(whole(2, 300))
        + """
    note(point("batch", 50, 3)); note(point("batch", 50, 21)); note(point("pages", 25, 3)); note(point("queue", 3, 30));
    note(point("queue", 20, 30)); note(point("tree", 5, 100)); note(point("steps", 60, 40));
    const left = new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true });
    document.querySelector("[data-part=pages] canvas").dispatchEvent(left);
    note(text("[data-part=pages] .pointed"));
    """
    )
    first, own, page_, other, mine, node, step, moved = drawn(script)
    assert first.startswith("row 0 reads its prompt: 100 of 90 tokens; 7 pages; 3 drafts accepted")
    assert own.startswith("row 1 (yours: gen-own) decodes, 11 tokens after its prompt of 90")
    assert page_ == "page 3: held" and moved == "page 2: cached"
    assert other == "another has waited 1.5 s, priority 0" and mine == "yours (gen-next) has waited 20 ms, priority -3"
    assert node == "after 0 pages: 10 pages (160 tokens), held by 2 sequences, 2 children"
    assert step.startswith("step 0: 2 sequences; device 1.50 ms; planned in 0.10 ms") and "64 prompt tokens" in step


def test_changes_are_drawn_over_the_picture(drawn):
    change = {
        "state": "ready", "reason": "ready", "numbers": {}, "time": 90000, "counts": [999, 1000, 1000, 1], "rows": [],
        "waiting": 0, "queue": [], "steps": [], "pages": {"runs": [0, 2, 3, 2, 1, 0]}, "own": {"rows": {}, "queue": {}},
    }  # fmt: skip
    script = (
        sent(whole(2))
        + sent(change)
        + "note(point('pages', 5, 3)); note(point('pages', 25, 3)); note(text('.numbers'));"
    )
    first, third, numbers = drawn(script)
    assert first == "page 1: shared" and third == "page 3: free" and "running 0" in numbers


def test_an_engine_without_pages_shows_its_batch_queue_and_steps(drawn):
    picture = whole(2)
    del picture["pages"]
    script = (
        sent(picture | {"tree": None, "counts": []})
        + "for (const part of ['pages', 'tree', 'batch', 'queue', 'steps']) note(shown(part));"
    )
    assert drawn(script) == [False, False, True, True, True]


def test_it_says_in_which_state_the_server_is(drawn):
    states = ["loading", "asleep", "draining", "failed"]
    script = "".join(
        sent({"state": state, "reason": "because", "numbers": {}, "own": {"rows": {}, "queue": {}}})
        + "note(text('.said'));"
        for state in states
    )
    loading, asleep, draining, failed = drawn(script)
    assert "is loading" in loading and "sleeps" in asleep and "shutting down" in draining and "because" in failed


def test_it_connects_again_ever_more_slowly_and_says_why_not(drawn):
    script = """
    const body = (message) => JSON.stringify({ error: { message } });
    const refuse = (status, message) => { answer = () => new Response(body(message), { status }); };
    const first = answer;
    refuse(503, "16 clients watch already");
    feed.close(); await wait(2000); note(text(".said")); note(asked.length);
    await wait(60000); note(asked.length);
    refuse(401, "no"); await wait(20000); note(text(".said"));
    answer = first; await wait(20000); send(PICTURE); await wait(100); note(text(".said"));
    it.stop(); const before = asked.length; await wait(60000); note(asked.length - before);
    note(document.getElementById("x").childElementCount);
    """.replace("PICTURE", json.dumps(whole(1)))
    full, soon, later, key, again, more, left = drawn("await wait(10);" + script)
    assert "16 clients watch already" in full and "Trying again" in full
    assert soon <= 4 and later <= soon + 12
    assert "needs an API key" in key and again.startswith("a model") and more == 0 and left == 0


def test_a_paused_view_watches_no_more(drawn):
    script = (
        sent(whole(1))
        + """
    const button = document.querySelector("#x button"), first = answer;
    button.click(); await wait(50); note(text(".said")); note(button.getAttribute("aria-pressed")); note(asked.length);
    await wait(30000); note(asked.length); button.click(); await wait(50); note(asked.length);
    """
    )
    paused, pressed, *counts = drawn(script)
    assert paused.startswith("Paused") and pressed == "true" and counts == [1, 1, 2]


def test_the_trace_is_fetched_with_the_page_s_key(drawn):
    script = (
        sent(whole(1))
        + """
    const saved = []; HTMLAnchorElement.prototype.click = function () { saved.push(this.download); };
    answer = () => new Response("{}", { headers: { "content-type": "application/json" } });
    document.querySelectorAll("#x button")[1].click(); await wait(50); note(asked); note(saved);
    """
    )
    assert drawn(script) == [["/xray", "/xray/trace"], ["gradus-trace.json"]]


def test_nothing_that_arrives_becomes_markup(drawn):
    about, own = dict.fromkeys(("model", "engine", "device"), HOSTILE), {"1": HOSTILE}
    picture = json.dumps(whole(2, about=about, own={"rows": own, "queue": own}))
    script = (
        f"await wait(10); send(JSON.parse(atob('{base64.b64encode(picture.encode()).decode()}'))); await wait(100);"
    )
    script += """
    note(document.querySelectorAll("#x img, #x b").length);
    note(text(".said").includes("<img")); note(point("batch", 50, 21).includes("<img"));
    """
    assert drawn(script) == [0, True, True]
    scripts = view.script()
    assert "innerHTML" not in scripts and "insertAdjacentHTML" not in scripts and "eval(" not in scripts


def test_the_lessons_x_ray_draws_with_the_same_helpers():
    text = page([])
    assert view.resource(view.SHARED_SCRIPT) in text and view.resource(view.SHARED_STYLE) in text
