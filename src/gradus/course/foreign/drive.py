"""One engine under test: configured, asked, stepped, and held to what must be true in every step of every phase.

A drive knows the oracle's answers. So each report is judged as it comes: which spans a step may compute, which tokens
they must produce, which pages they must hold. What only some phases promise is in claims/.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradus.course.foreign.oracle import Oracle, Question, oracle_of
from gradus.course.foreign.program import Program
from gradus.course.foreign.report import Report, Span, read
from gradus.course.foreign.weights import Models

MOST_STEPS = 400
FEW = 12  # tokens of a prompt that a message shows


class Broken(Exception):
    """A promise that does not hold, with the case that shows it."""


def require(holds: bool, counterexample: str) -> None:
    """Raises Broken with the counterexample unless the promise holds."""
    if not holds:
        raise Broken(counterexample)


@dataclass(slots=True)
class Asked:
    """A request under way. number: counts requests from 1. made: tokens so far. stored: positions in its cache.

    start: where its first span must start, and why, where a claim says so.
    """

    id: str
    number: int
    question: Question
    answer: tuple[int, ...]
    start: tuple[int, str] | None = None
    made: int = 0
    stored: int = 0
    runs: bool = False

    @property
    def known(self) -> int:
        return len(self.question.prompt) + self.made

    @property
    def over(self) -> bool:
        return self.made == self.question.max_tokens

    def __str__(self) -> str:
        prompt, more = self.question.prompt, " …" if len(self.question.prompt) > FEW else ""
        shown, length = ", ".join(map(str, prompt[:FEW])), "1 token" if len(prompt) == 1 else f"{len(prompt)} tokens"
        return f"request {self.number} ({self.id}, a prompt of {length}: [{shown}{more}])"


@dataclass
class Drive:
    """An engine with settings. once: each position must be computed once (p00 may start anew at 0 in every step).

    Raises Fault and Garbage for what a program must never do, and Broken for a promise that it breaks.
    """

    program: Program
    oracle: Oracle
    settings: Mapping[str, Any]
    once: bool = True
    asked: dict[str, Asked] = field(default_factory=dict)
    steps: list[Report] = field(default_factory=list)

    # -- asking ------------------------------------------------------------------------------------------------------

    def submit(self, id: str, question: Question, start: tuple[int, str] | None = None) -> None:
        """Submit a request that must be accepted. start: as in Asked."""
        answer = self.oracle.answer(question)
        refusal = self.refusal(id, question)
        self.asked[id] = asked = Asked(id, len(self.asked) + 1, question, answer, start)
        require(refusal is None, f"{asked} is refused: {refusal}")

    def refusal(self, id: str, question: Question) -> str | None:
        """Submit a request; return why it is refused, None if it is accepted."""
        message = {"do": "submit", "id": id, "prompt": list(question.prompt), "max_tokens": question.max_tokens}
        answer = self.program.send(message | {"temperature": question.temperature, "seed": question.seed})
        return None if "error" not in answer else str(answer["error"])

    def step(self) -> Report:
        """Let the program run a step, and judge its report."""
        report = read(self.program.send({"do": "step"}), len(self.steps) + 1)
        self.steps.append(report)
        self.check(report)
        return report

    def run(self, *questions: Question, arrivals: Iterable[tuple[int, Question]] = ()) -> list[Report]:
        """Submit requests a, b, c, …, step until all have ended, and return the steps. arrivals: further requests,
        each with the step before which it comes, counted from 1."""
        begun, coming = len(self.steps), sorted(arrivals, key=lambda each: each[0])
        for question in questions:
            self.submit(self.next_id(), question)
        while coming or self.left:
            while coming and coming[0][0] <= len(self.steps) - begun + 1:
                self.submit(self.next_id(), coming.pop(0)[1])
            self.step()
            if len(self.steps) - begun == MOST_STEPS:
                late = self.left[0]
                raise Broken(f"after {MOST_STEPS} steps {late} has {late.made} of {late.question.max_tokens} tokens")
        return self.steps[begun:]

    def next_id(self) -> str:
        return chr(ord("a") + len(self.asked) % 26) + (str(len(self.asked) // 26) if len(self.asked) >= 26 else "")

    @property
    def left(self) -> list[Asked]:
        """The requests that have not ended."""
        return [each for each in self.asked.values() if not each.over]

    def spans_of(self, id: str) -> Iterator[Span]:
        """Every span of a request so far."""
        return (span for report in self.steps if (span := report.of(id)) is not None)

    # -- judging -----------------------------------------------------------------------------------------------------

    def check(self, report: Report) -> None:
        """Check one step for the promises of every phase."""
        at = f"step {report.number}"
        self.note_preempted(report)
        require(len(set(report.names)) == len(report.spans), f"{at} has two spans of one request: {report.computed}")
        for span in report.spans:
            asked = self.asked.get(span.id)
            require(asked is not None and not asked.over, f"{at} runs {span.id!r}, which is not under way")
            assert asked is not None
            self.check_span(at, asked, span)
            self.check_tokens(at, asked, span)
            asked.runs, asked.made = True, asked.made + len(span.tokens)
            asked.stored = asked.known - 1 if span.tokens else span.end
        over = {span.id for span in report.spans if self.asked[span.id].over}
        require(set(report.ended) == over, f"{at}: {listed(over)} had all tokens; ended are {listed(report.ended)}")
        if self.settings["pages"]:
            self.check_pages(at, report)
        if (slots := self.settings["sequences"]) < len(report.spans):
            raise Broken(f"{at} runs {len(report.spans)} requests, where at most {slots} may run: {report.computed}")

    def note_preempted(self, report: Report) -> None:
        """A request that ran and holds no pages now has lost what it had stored."""
        for asked in self.left if self.settings["pages"] else ():
            if asked.runs and asked.id not in report.tables:
                asked.runs, asked.stored = False, 0

    def check_span(self, at: str, asked: Asked, span: Span) -> None:
        """It begins where the stored positions end, and ends with the newest token and drafts, or before."""
        first, stored = span.start, asked.stored
        if asked.start is not None and not asked.runs:
            start, why = asked.start
            require(first == start, f"{asked} {why}: its first span starts at {start}; yours starts at {first}")
        reused = self.settings["sharing"] and not asked.runs
        right = first == stored or (reused and first < asked.known) or (not self.once and first == 0)
        require(
            right,
            f"{at}: {asked} has {stored} positions stored, so its span starts at {stored}; yours starts at {first}"
            + (" and computes them again" if first < stored else ""),
        )
        end = span.end - len(span.drafts)
        require(
            end == asked.known or (end < asked.known and not span.drafts),
            f"{at}: {asked} has {asked.known} tokens, of which the span computes {first} to {end - 1}"
            + (f" and {len(span.drafts)} drafts" if span.drafts else ""),
        )

    def check_tokens(self, at: str, asked: Asked, span: Span) -> None:
        """The oracle's next tokens: one, and one more for each draft that is right; none behind a chunk."""
        newest = span.end - len(span.drafts) == asked.known
        if not newest:
            require(not span.tokens, f"{at}: {asked} has {asked.known - span.end} tokens of its prompt to compute yet; "
                                     f"yours has made {list(span.tokens)} from a chunk before the end")  # fmt: skip
            return
        expected = asked.answer[asked.made :]
        for place, (mine, right) in enumerate(zip(span.tokens, expected, strict=False)):
            count = asked.made + place
            require(mine == right, f"{asked}: token {count + 1} is {mine}, the oracle's is {right}; {agreeing(count)}")
        agree = 0
        while agree < min(len(span.drafts), len(expected) - 1) and span.drafts[agree] == expected[agree]:
            agree += 1
        made = len(span.tokens)
        drafted = f" with drafts {list(span.drafts)}, of which {agree} are right," if span.drafts else ""
        require(made == agree + 1, f"{at}: {asked}{drafted} makes {agree + 1} tokens in this step; yours made {made}")

    def check_pages(self, at: str, report: Report) -> None:
        """Each table has the pages of its stored positions, and the pool's pages add up."""
        size, pool = self.settings["page_size"], self.settings["pages"]
        for span in report.spans:
            require(span.id in report.tables, f"{at} runs {span.id} and reports no table of its pages")
            held, needed = len(report.tables[span.id]), -(-span.end // size)
            require(
                held == needed,
                f"{at}: positions 0 to {span.end - 1} of {self.asked[span.id]} need pages of {size}: {needed}; "
                f"yours holds {held}: {list(report.tables[span.id])}",
            )
        for id, table in report.tables.items():
            require(id in self.asked, f"{at} reports pages of {id!r}, which was not submitted")
            require(len(set(table)) == len(table), f"{at}: a page is twice in the table of {id}: {list(table)}")
        ended = [id for id in report.tables if self.asked[id].over and report.of(id) is None]
        require(not ended, f"{at}: {listed(ended)} ended before this step, and still holds pages")
        held = len({page for table in report.tables.values() for page in table})
        require(
            held + report.free + report.idle == pool,
            f"{at}: {held} pages are held, {report.idle} idle and {report.free} free, which makes "
            f"{held + report.free + report.idle}; the pool has {pool}",
        )


class Bench:
    """Makes a drive for each claim, over one program."""

    def __init__(self, program: Program, models: Models) -> None:
        self.program, self.models = program, models

    def drive(
        self,
        *,
        sequences: int = 1,
        pages: int = 0,
        page_size: int = 4,
        sharing: bool = False,
        token_budget: int = 0,
        drafts: int = 0,
        bits: int = 32,
        once: bool = True,
    ) -> Drive:
        """Configure the program anew, with nothing left of the claim before. Raises Broken if it refuses."""
        settings = {"sequences": sequences, "pages": pages, "page_size": page_size, "sharing": sharing}
        settings |= {"token_budget": token_budget, "drafts": drafts}
        self.configure(settings, bits)
        return Drive(self.program, oracle_of(self.models.meant(bits)), settings, once)

    def configure(self, settings: Mapping[str, Any], bits: int = 32) -> None:
        given = {"do": "configure", "model": str(self.models.given(bits)), "places": 0, "pace_ms": 0, **settings}
        answer = self.program.send(given)
        require("error" not in answer, f"the configuration {dict(settings)} is refused: {answer.get('error')}")


def agreeing(count: int) -> str:
    return "the first differs" if count == 0 else f"the first {count} agree" if count > 1 else "the first agrees"


def listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
