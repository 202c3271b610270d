"""p12's ranks as a recording: what each reads, exchanges and waits for, on the lesson's clock that counts weights.

The ranks run as the lesson's own replay runs them, so a student's functions can take the place of ours.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from gradus import phases
from gradus.course.xray.events import event
from gradus.course.xray.lanes.recording import Act, Frame, LaneRecording, frame
from gradus.course.xray.places import place
from gradus.course.xray.questions import asked
from gradus.course.xray.words import runs_of
from gradus.exercises.solution import Solution

ABOUT = (
    "One model on two ranks: matrices cut in two, with a high toll for each exchange and with a low one, then layers "
    "cut in two, with one micro-batch and with two. Time is counted in weights that are read, so a toll is as long as "
    "reading that many."
)
LEGEND = (
    ("computes", 0, "reads weights"),
    ("computes", 1, "for the second micro-batch"),
    ("exchanges", 0, "exchanges"),
    ("waits", 0, "waits"),
)
HEAD = ("rank", "has", "weights read", "exchanges", "waited")
NOBODY, BOTH = "none", "both"
A_WHILE = 0.05  # of a frame: less is only the toll of an exchange that ends in it


class Way:
    """One way to cut the model: its pieces, and the moments at which its frames end."""

    def __init__(self, name: str, pieces: Sequence[Any], parts: int, whole: bool = False) -> None:
        self.name, self.pieces, self.parts = name, pieces, parts
        self.length = max(piece.until for piece in pieces)
        ends = {piece.until for piece in pieces if piece.kind == "exchanges"} | {self.length}
        self.ends = [self.length] if whole else sorted(ends)

    def act(self) -> Act:
        return Act(self.name, self.length, [_drawn(piece) for piece in self.pieces])

    def over(self, at: float, until: float) -> list[Any]:
        """The pieces that end in (at, until], in order of rank."""
        return sorted((p for p in self.pieces if at < p.until <= until), key=lambda piece: (piece.at, piece.rank))

    def waiting(self, at: float, until: float) -> str:
        """Which rank waits between the two moments."""
        waited = [0.0, 0.0]
        for piece in self.pieces:
            if piece.kind == "waits":
                waited[piece.rank] += max(0, min(piece.until, until) - max(piece.at, at))
        some = [rank for rank, span in enumerate(waited) if span > A_WHILE * (until - at)]
        return BOTH if len(some) == 2 else f"rank {some[0]}" if some else NOBODY

    def rows(self, until: float) -> list[list[str]]:
        """The state of both ranks at a moment."""
        return [self._row(rank, until) for rank in range(2)]

    def _row(self, rank: int, until: float) -> list[str]:
        mine = [piece for piece in self.pieces if piece.rank == rank]

        def spent(kind: str) -> int:
            return sum(max(0, min(p.until, until) - p.at) for p in mine if p.kind == kind)

        done = sum(p.kind == "exchanges" and p.until <= until for p in mine)
        return [f"rank {rank}", self.has(rank), f"{spent('computes'):,}", str(done), f"{spent('waits'):,}"]

    def has(self, rank: int) -> str:
        if self.parts > 1:
            return "half of every matrix"
        return matrices_named(p.act for p in self.pieces if p.rank == rank)


def record(model: str, yours: Solution | None = None) -> LaneRecording:
    """Run all ways. yours: p12 with a student's functions. Raises ConfigError for a model that cannot be cut in two."""
    p12 = yours or phases.find("p12")
    ways = list(_ways(p12.module("demo"), model))
    frames: list[Frame] = []
    for number, way in enumerate(ways):
        frames += _frames(way, number, len(frames), ways)
    title = phases.find("p12").title
    return LaneRecording(
        title=f"{'' if yours is None else 'your '}p12: {title[0].lower() + title[1:]}",
        about=ABOUT,
        model=model,
        unit="weights",
        lanes=("rank 0", "rank 1"),
        legend=LEGEND,
        acts=[way.act() for way in ways],
        frames=frames,
        table="Ranks",
        head=HEAD,
        numbers=(2, 3, 4),
        grows=False,
        code=_code(p12),
        settings={"clock": "weights read"},
    )


def _ways(demo: Any, model: str) -> Iterator[Way]:
    alone, runs = demo.runs(model)
    for number, run in enumerate(runs):
        said = f"{run.name}, {demo.REQUESTS} requests in each, two tokens"
        if run.parts > 1:
            said = f"{run.name}, an exchange is {run.toll:,} weights long ({run.way}); one process reads {alone:,}"
        yield Way(said, run.pieces, run.parts, whole=run.parts > 1 and number > 0)


def _frames(way: Way, number: int, before: int, ways: Sequence[Way]) -> list[Frame]:
    frames, at, last = [], 0.0, ""
    for index, until in enumerate(way.ends):
        events = [event("way", way.name)] if index == 0 else []
        events += _whole(way, ways[number - 1]) if len(way.ends) == 1 else _events(way, at, until)
        shown = frame(before + index + 1, number, at, until, events, way.rows(until))
        if way.parts > 1:
            shown["question"] = _about_sums(way, index, ways[number - 1] if len(way.ends) == 1 else None)
        elif index and (waiting := way.waiting(at, until)) != last:
            last = waiting
            whys = [f"{one['text']}: {one['why']}" for one in events if one["kind"] == "waits"]
            shown["question"] = _about_waits(way, waiting, "; ".join(whys))
        frames.append(shown)
        at = until
    return frames


def _whole(way: Way, before: Way) -> list[Frame]:
    """All of a step at once, since it has the exchanges of the way before it."""
    why = f"the same matrices and as many exchanges, each shorter: {before.length:,} before"
    return [event("exchanges", f"the whole step takes as long as reading {way.length:,} weights", why)]


def _events(way: Way, at: float, until: float) -> Iterator[Frame]:
    told = way.over(at, until)
    if way.parts > 1:
        read = next((piece.act for piece in told if piece.kind == "computes"), None)
        if read is not None:
            said = f"both ranks read half of {matrices_named([read])}"
            yield event("computes", said, f"{read.weights:,} weights each, at the same time")
        yield _sum(read, next(piece.act for piece in told if piece.kind == "exchanges"))
        return
    for piece in told:
        who, what = f"rank {piece.rank}", f"of micro-batch {'ab'[piece.act.micro_batch]}"
        thing = "rows" if piece.rank else "tokens"
        if piece.kind == "computes":
            why = f"{piece.act.weights:,} weights, however many requests"
            yield event("stage", f"{who} has read {matrices_named([piece.act])}: step {what}", why)
        elif piece.kind == "waits":
            span = f"{piece.until - piece.at:,}"
            yield event("waits", f"{who} waited as long as {span} weights take", f"the {thing} {what} were not there")
        else:
            why = (
                "its sender has gone on meanwhile" if piece.rank else "every stage has a scheduler that must know them"
            )
            yield event("rows", f"{who} gets the {thing} {what}", why)


def _sum(read: Any, act: Any) -> Frame:
    if read is None:
        why = "the token's row is on one of them, and the other adds zeros"
        return event("exchanges", "the ranks sum the embedding", why)
    if any(role == "head" for role, _ in read.matrices):
        why = f"{act.size:,} bytes from each: a rank has scored half of the vocabulary, and both draw"
        return event("exchanges", "the ranks gather their scores", why)
    part = "heads" if any(role == "qkv" for role, _ in read.matrices) else "features"
    why = f"{act.size:,} bytes from each: a row of full width, but of its own {part} alone"
    return event("exchanges", "the ranks add their summands", why)


def _about_sums(way: Way, index: int, before: Way | None) -> dict[str, Any] | None:
    if before is not None:
        ask = "The same cut with a lower toll. How long does the step take, in weights?"
        right = way.length
        near = [before.length, right, before.length // 2, right // 2]
        return asked(ask, [f"{each:,}" for each in sorted(near)], f"{right:,}", "the toll falls, the reading stays")
    if index == 1:
        answers = ("all heads, so that both have them", "keys and values", "a summand of the output product")
        ask = "Both ranks read half of layer 0's attention. What do they exchange then?"
        return asked(ask, answers, answers[-1], "each has a row of full width, of its own heads alone")
    if index == 2:
        return asked("How many exchanges has a layer in all?", (1, 2, 4), 2, "one behind attention, one behind the MLP")
    if index == len(way.ends) - 1:
        answers = ("scores are summed", "all scores go to both, and both draw", "rank 0 draws, and sends the token")
        ask = "Both ranks read half of the head. What then?"
        return asked(ask, answers, answers[1], "the same logits and the same noise give both the same token")
    return None


def _about_waits(way: Way, waiting: str, why: str) -> dict[str, Any]:
    if any(piece.act.micro_batch for piece in way.pieces):
        answers = ("it waits for their tokens", "it reads its layers for micro-batch b", "it reads rank 1's layers")
        ask = "Rank 0 has passed on the rows of micro-batch a. What does it do next?"
        return asked(ask, answers, answers[1], f"b's requests are others, so they need no token of a's. But {why}")
    return asked("Which rank waits for the other in this step?", (NOBODY, "rank 0", "rank 1", BOTH), waiting, why)


def matrices_named(acts: Any) -> str:
    """ "layers 0 and 1, the head", or the products of one layer."""
    found = {matrix for act in acts for matrix in act.matrices}
    roles = {role for role, _ in found}
    layers = sorted({layer for role, layer in found if role != "head"})
    if roles == {"head"}:
        return "the head"
    if len(layers) == 1 and roles == {"qkv", "attn_out"}:
        return f"layer {layers[0]}'s queries, keys, values and output product"
    if len(layers) == 1 and roles == {"gate_up", "down"}:
        return f"layer {layers[0]}'s MLP, both products"
    return f"layer{'s' * (len(layers) > 1)} {runs_of(layers)}{', the head' * ('head' in roles)}"


def _drawn(piece: Any) -> dict[str, Any]:
    text = f"rank {piece.rank} {piece.kind}, {piece.at:,} to {piece.until:,}"
    if piece.kind == "computes":
        text += f": {matrices_named([piece.act])}"
    return {
        "lane": piece.rank,
        "kind": piece.kind,
        "at": piece.at,
        "until": piece.until,
        "of": piece.act.micro_batch,
        "text": text,
    }


def _code(p12: Any) -> dict[str, dict[str, Any]]:
    linear, pipeline, exchange, demo = (p12.module(name) for name in ("linear", "pipeline", "exchange", "demo"))
    return {
        "computes": place(linear.RowParallel.forward),
        "exchanges": place(linear.all_reduce),
        "stage": place(pipeline.StageRunner.layers),
        "rows": place(exchange.Exchange.send),
        "waits": place(exchange.Exchange.receive),
        "way": place(demo.show),
    }
