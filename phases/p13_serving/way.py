"""Follow two requests through the server: Ann's answer streams, and Cy asks something meanwhile.

    python -m phases.p13_serving.way
    python -m phases.p13_serving.way --phase p11 --model smollm2-135m

Each line of the output is one event: its time, its duration, and its thread.
"""

import argparse
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from gradus import LLM
from gradus.engine.core import Core
from gradus.loading import Tokenizer
from phases.p13_serving.desk import Desk
from phases.p13_serving.local import frames, local

NAMES = {"gen-1": "Ann", "gen-2": "Cy"}
ANN, CY = ("Once upon a time, by the sea,", 12), ("Why is the sky dark?", 3)  # prompt, and tokens of the answer
BEFORE_CY = 4  # frames that Ann has


@dataclass(frozen=True, slots=True)
class Note:
    """One event. where: "client", "event loop" or "engine". at, until: in seconds; equal if it takes no time."""

    at: float
    until: float
    where: str
    kind: str
    who: tuple[str, ...]


@dataclass(slots=True)
class Watch:
    """Records each call of `engine`, and passes everything on to it."""

    engine: Core
    notes: list[Note] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def note(self, where: str, kind: str, *who: str, since: float | None = None) -> None:
        now = time.perf_counter()
        self.notes.append(Note(now if since is None else since, now, where, kind, who))

    def submit(self, request: Any) -> None:
        self.note("engine", "takes the request", NAMES[request.id])
        self.engine.submit(request)

    def step(self) -> Any:
        start = time.perf_counter()
        outputs = list(self.engine.step())
        self.note("engine", "step", *(NAMES[output.request_id] for output in outputs), since=start)
        return outputs

    def watch(self, desk: Desk) -> None:
        submit, send, on_report = desk.submit, desk.send, desk.on_report

        async def submitted(prompt: Any, params: Any) -> Any:
            start = time.perf_counter()
            stream = await submit(prompt, params)
            self.note("event loop", "lets it in, encodes, sends it on", NAMES[stream.request.id], since=start)
            return stream

        def reported(report: Any) -> None:
            start = time.perf_counter()
            on_report(report)
            who = [NAMES[output.request_id] for output in report.outputs]
            self.note("event loop", "turns tokens into text", *who, since=start)

        desk.submit, desk.send, desk.on_report = submitted, send, reported  # type: ignore[method-assign]


def followed(engine: Core, tokenizer: Tokenizer) -> list[Note]:
    """Run both requests, once to warm up and once recorded. Returns the notes in order of time."""
    run(Watch(engine), tokenizer)
    watch = Watch(engine)
    run(watch, tokenizer)
    return sorted(watch.notes, key=lambda note: note.at)


def run(watch: Watch, tokenizer: Tokenizer) -> None:
    begun = threading.Event()

    def ask(who: str, prompt: str, tokens: int) -> None:
        watch.note("client", "sends the request", who)
        for number, _ in enumerate(frames(port, prompt=prompt, max_tokens=tokens), start=1):
            watch.note("client", "reads a frame", who)
            if number == BEFORE_CY:
                begun.set()
        begun.set()

    with local(watch, tokenizer) as (server, port):
        watch.watch(server.desk)
        ann = threading.Thread(target=ask, args=("Ann", *ANN))
        ann.start()
        begun.wait()
        ask("Cy", *CY)
        ann.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase", default="p03")
    parser.add_argument("--model", default="random:tiny-llama")
    asked = parser.parse_args()
    with LLM(asked.model, phase=asked.phase, device="cpu", max_sequences=4 if asked.phase >= "p02" else None) as llm:
        notes = followed(llm.core, llm.tokenizer or Tokenizer.of_bytes())
    print("      ms   took  where       who       what")
    for note in notes:
        start, took = 1e3 * (note.at - notes[0].at), 1e3 * (note.until - note.at)
        print(f"{start:8.2f} {took:6.2f}  {note.where:10}  {', '.join(note.who):8}  {note.kind}")


if __name__ == "__main__":
    main()
