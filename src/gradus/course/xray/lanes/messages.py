"""p13's messages as a recording: Ann's answer streams, Cy asks, and a frame is one event of the lesson's recorded run.

The same two requests run now if a student's functions take the place of ours. No torch here, unless they need it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from gradus import phases
from gradus.course.xray.events import event
from gradus.course.xray.lanes.recording import Act, Frame, LaneRecording, frame
from gradus.course.xray.lanes.way import Note, begin, crossings, recorded
from gradus.course.xray.places import place
from gradus.course.xray.questions import asked
from gradus.exercises.solution import Solution, listed

ABOUT = (
    "Ann's answer streams, and Cy asks something. Every message between the two clients, the event loop and the "
    "engine's thread, in the order in which it happened: the engine waits for no client, and no client calls it."
)
LANES = ("Ann", "Cy", "event loop", "engine")
ANN, BOTH, TEXT, ENTRY = 0, 1, 2, 3  # colors
LEGEND = (("does", ANN, "a step for Ann"), ("does", BOTH, "a step for Ann and Cy"), ("does", TEXT, "tokens to text"),
          ("does", ENTRY, "entering, encoding"))  # fmt: skip
HEAD = ("ms", "took", "where", "who", "what")
MOST_MS = 0.02  # what is shorter is a moment, not a span

KINDS = {
    "sends the request": "asks",
    "lets it in, encodes, sends it on": "enters",
    "takes the request": "taken",
    "step": "step",
    "turns tokens into text": "text",
    "reads a frame": "reads",
}
WHY = {
    "asks": "its connection goes to the event loop, and nothing of it to the engine yet",
    "enters": "places are counted, the prompt becomes tokens, and a message goes to the engine's inbox",
    "taken": "between two steps: nothing calls the engine while it is at work",
    "step": "one step for all that run, and one report at its end, which waits for no reader",
    "text": "on the event loop, while the engine is at its next step",
    "reads": "a frame is on its way as soon as its text is certain",
}


def record(model: str, yours: Solution | None = None) -> LaneRecording:
    """The lesson's recorded run; yours: p13 with a student's functions, which then run the same two requests."""
    p13 = yours or phases.find("p13")
    notes = recorded() if yours is None else _live(yours, model)
    start = begin(notes)
    end = max(note.until for note in notes if "Cy" in note.who) + 0.3
    shown = [note for note in notes if note.until >= start and note.at <= end]
    pieces = [_piece(note, start, end) for note in shown if note.where != "client"]
    arrows = [{"from": LANES.index(a), "to": LANES.index(b), "at": at - start} for a, b, at in crossings(shown)]
    title = phases.find("p13").title
    return LaneRecording(
        title=f"{'' if yours is None else 'your '}p13: {title[0].lower() + title[1:]}",
        about=ABOUT,
        model=model,
        unit="ms",
        lanes=LANES,
        legend=LEGEND,
        acts=[Act("from the step during which Cy asks to the end of Cy's answer", end - start, pieces, arrows)],
        frames=list(_frames(shown, start, end)),
        table="Messages",
        head=HEAD,
        numbers=(0, 1),
        grows=True,
        code=_code(p13),
        settings={"run": "recorded" if yours is None else "just now"},
    )


def _live(yours: Solution, model: str) -> list[Any]:
    """The same two requests through a student's server: notes in milliseconds."""
    from gradus import LLM
    from gradus.loading import Tokenizer

    with LLM(model, phase="p03", device="cpu", dtype="float32", max_sequences=4) as llm:
        notes = yours.module("way").followed(llm.core, Tokenizer.of_bytes())
    begin = notes[0].at
    return [Note(1e3 * (n.at - begin), 1e3 * (n.until - begin), n.where, n.kind, n.who) for n in notes]


def _piece(note: Any, start: float, end: float) -> dict[str, Any]:
    kind = KINDS[note.kind]
    of = {"step": BOTH if "Cy" in note.who else ANN, "text": TEXT}.get(kind, ENTRY)
    at, until = max(note.at - start, 0.0), min(note.until, end) - start
    said = f"{note.where}: {note.kind} ({listed(note.who)}), {at:.2f} to {until:.2f} ms"
    return {"lane": LANES.index(note.where), "kind": "does", "at": at, "until": until, "of": of, "text": said}


def _frames(shown: Sequence[Any], start: float, end: float) -> Iterator[Frame]:
    begins = [max(note.at - start, 0.0) for note in shown]
    for index, note in enumerate(shown):
        until = begins[index + 1] if index + 1 < len(shown) else end - start
        kind, who = KINDS[note.kind], listed(note.who)
        told = {
            "asks": f"{who} sends the request",
            "enters": f"the event loop lets {who} in, encodes the prompt, and sends it on",
            "taken": f"the engine takes {who}'s request",
            "step": f"the engine runs a step for {who}",
            "text": f"the event loop turns tokens of {who} into text",
            "reads": f"{who} reads a frame",
        }[kind]
        took = note.until - note.at
        row = (f"{begins[index]:.2f}", f"{took:.2f}" if took >= MOST_MS else "", note.where, who, note.kind)
        made = frame(index + 1, 0, begins[index], until, [event(kind, told, WHY[kind])], [row])
        made["ends"] = min(note.until, end) - start
        made["question"] = _question(note, shown[:index])
        yield made


def _question(note: Any, before: Sequence[Any]) -> dict[str, Any] | None:
    """Ask once what the engine does when Cy comes, when it takes the request, and which requests it then runs."""
    kind, last = KINDS[note.kind], KINDS[before[-1].kind] if before else ""
    if kind == "step" and last == "asks":
        answers = ("it stops, and takes Cy's request", "it begins a step for Ann", "it waits for Ann to read")
        return asked("Cy has sent a request. What does the engine do?", answers, answers[1], WHY["asks"])
    if kind == "taken":
        answers = ("as soon as it is encoded", "when the step under way has ended", "when Ann's answer has ended")
        return asked("Cy's request is encoded. When does the engine take it?", answers, answers[1], WHY["taken"])
    if kind == "step" and last == "taken":
        answers = ("Cy's prompt alone", "Ann alone, until Cy's prompt is computed", "Ann and Cy")
        ask = "The engine has taken Cy's request. Which requests does its next step advance?"
        return asked(ask, answers, answers[2], WHY["step"])
    if kind == "reads" and "Cy" in note.who and not any(n.kind == note.kind and "Cy" in n.who for n in before):
        answers = ("Ann: a second frame", "Cy: the first frame", "neither, until Cy's answer has ended")
        ask = "A step has given both a token, and Ann has read hers. Who reads next?"
        return asked(ask, answers, answers[1], WHY["reads"])
    return None


def _code(p13: Any) -> dict[str, dict[str, Any]]:
    desk, thread, app = (p13.module(name) for name in ("desk", "engine_thread", "app"))
    return {
        "enters": place(desk.Desk.submit),
        "taken": place(thread.EngineThread.turn),
        "step": place(thread.EngineThread.turn),
        "text": place(desk.Desk.on_report),
        "reads": place(app.Answer.send_events),
    }
