"""A program as a contestant of the speedrun: the same messages as for the judge, with the clock around them.

The settings that a check varies are all off, which asks nothing: the program batches, pages, shares and drafts as it
likes. Before each repetition it is configured anew, and so forgets every request.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import Any

from gradus.bench.measure.drive import ContenderFailed
from gradus.bench.speedrun.contestants import Answers
from gradus.bench.speedrun.rules import REQUESTS
from gradus.bench.speedrun.workload import Ask
from gradus.course.foreign import published
from gradus.course.foreign.program import Fault, Program, words_of
from gradus.course.foreign.report import Garbage, read
from gradus.loading import Checkpoint

OFF = {"pages": 0, "page_size": 0, "sharing": False, "token_budget": 0, "drafts": 0, "places": 0, "pace_ms": 0}


class ProgramContestant:
    """command: as for `gradus check --command`. seconds: the limit of each answer, loading included."""

    kind = "program"

    def __init__(self, checkpoint: Checkpoint, command: str, seconds: float) -> None:
        self.checkpoint, self.command, self.seconds = checkpoint, command, seconds
        words = words_of(command.replace("{port}", "0"))
        self.name = Path(words[0]).name
        self.facts: dict[str, Any] = {"program": command, "files": files_of(words)}
        self.folder = tempfile.TemporaryDirectory()
        self.program: Program | None = None
        self.number = 0  # of the next request's id, which no request had before

    def load(self) -> None:
        model = published.write(self.checkpoint, Path(self.folder.name) / "model")
        self.message = {"do": "configure", "model": str(model), "sequences": REQUESTS, **OFF}
        self.program = Program(self.command, self.seconds)
        try:
            self.program.wait_until_listening()
        except Fault as fault:
            raise ContenderFailed(str(fault)) from fault
        self.forget()

    def forget(self) -> None:
        self.send(self.message)

    def send(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer. Raises ContenderFailed for an error or a fault."""
        assert self.program is not None, "loaded first"
        try:
            answer = self.program.send(message)
        except Fault as fault:
            raise ContenderFailed(str(fault)) from fault
        if "error" in answer:
            raise ContenderFailed(f"the program refuses {message['do']!r}: {answer['error']}")
        return answer

    def run(self, asks: Sequence[Ask]) -> Answers:
        answers: dict[str, list[int]] = {}
        left = set()
        for ask in asks:
            id, self.number = f"r{self.number}", self.number + 1
            answers[id] = []
            left.add(id)
            message = {"do": "submit", "id": id, "prompt": list(ask.prompt), "max_tokens": ask.max_tokens}
            self.send(message | {"temperature": 0, "seed": 0})
        steps = 0
        while left:
            steps += 1
            try:
                report = read(self.send({"do": "step"}), steps)
            except Garbage as garbage:
                raise ContenderFailed(str(garbage)) from garbage
            for span in report.spans:
                if span.id not in left:
                    raise ContenderFailed(f"step {steps} runs {span.id!r}, which is not under way")
                answers[span.id] += span.tokens
            left -= set(report.ended)
            if not report.spans and left:
                raise ContenderFailed(f"step {steps} runs nothing, and {len(left)} requests have not ended")
        return list(answers.values())

    def close(self) -> None:
        if self.program is not None:
            self.program.close()
        self.folder.cleanup()


def files_of(words: Sequence[str]) -> list[Path]:
    """The files that a command's words name: the program itself, or a script that it runs."""
    found = (Path(which(word) or word) for word in words)
    return [path for path in dict.fromkeys(found) if path.is_file()]
