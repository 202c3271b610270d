"""The mistakes that p10 invites are caught, and the check says in a sentence what is wrong; of three files, which."""

from pathlib import Path

import pytest

from gradus import phases
from gradus.course.exercise import exercise_of
from gradus.course.skeleton import cut
from tests.course.conftest import reference

# What the third hints say, written out: the reference takes short cuts that nobody is asked for
PLAIN = {
    "PagedBatching.decode": """\
        for s in tuple(self.running):
            end = s.planned
            if s.slot >= 0 and s.decoding and end < s.longest and self.make_room(s, end):
                newest = s.tokens[-1] if end == len(s.tokens) else UNKNOWN
                self.plan.spans.append(Span(s, s.slot, end - 1, (newest,), 1, self.cache.table_change(s.id)))
                s.planned = end + 1
        self.left -= len(self.plan.spans)
""",
    "PagedBatching.commit": """\
        outputs = []
        for span, sampled in zip(plan.spans, result.get(), strict=True):
            sequence = span.sequence
            if sequence.finish_reason is not None:
                continue
            decoded = sequence.decoding and sequence.first_token is not None and len(span.tokens) == 1
            if span.logits:
                outputs.append(sequence.accept(sampled))
            if not decoded or sequence.finish_reason is not None or (span.start + 1) % self._publish_every == 0:
                self.settle(sequence, span, sampled, decoded)
        self.committed += 1
        self.deadlines.step_ended()
        return outputs
""",
}
ENOUGH = "if self.in_flight and (plan is None or len(self.in_flight) > self.lag):"
NEWEST = "newest = s.tokens[-1] if end == len(s.tokens) else UNKNOWN"
LATE = "            if sequence.finish_reason is not None:\n"
RECORDED = "self.tokens[upload(slots, torch.int64, self.tokens.device)] = tokens"
HOLES = "if span.tokens[0] == UNKNOWN]"


def solution(file_name: str) -> str:
    """A right one: the reference, or for the scheduler the plain one."""
    source = reference("p10", file_name)
    if file_name != "batching.py":
        return source
    source = cut(source, PLAIN, "p10")
    for name, body in PLAIN.items():
        source = source.replace(f'        raise NotImplementedError("p10: {name}")\n', body)
    return source


WRONG = {
    # file, the right text, the wrong text, what the sentence must say
    "a step is popped too early": (
        "engine.py",
        ENOUGH,
        ENOUGH.replace("> self.lag", ">= self.lag"),
        "with a lag of 1 four steps go like this: launch 1, launch 2, wait 1, launch 3, wait 2, launch 4, wait 3, "
        "wait 4; yours: launch 1, wait 1",
    ),
    "the newest step is waited for first": (
        "engine.py",
        "*self.in_flight.popleft()",
        "*self.in_flight.pop()",
        "launch 1, launch 2, wait 1, launch 3, wait 2, launch 4, wait 3, wait 4; yours: launch 1, launch 2, wait 2",
    ),
    "the last steps are never waited for": (
        "engine.py",
        ENOUGH,
        "if self.in_flight and len(self.in_flight) > self.lag:",
        "launch 4, wait 3, wait 4; yours: launch 1, launch 2, wait 1, launch 3, wait 2, launch 4, wait 3",
    ),
    "steps under way are no work": (
        "engine.py",
        " + len(self.in_flight) > 0",
        " > 0",
        "a has stopped, but step 3 is under way: that is work",
    ),
    "the newest known token stands in for the one nobody knows": (
        "batching.py",
        NEWEST,
        "newest = s.tokens[-1]",
        "with a lag of 1 the spans (start, tokens) are [(0, (5, 6, 7)), (3, (-1,)), (4, (-1,)), (5, (-1,))]; yours are "
        "[(0, (5, 6, 7)), (3, (7,))",
    ),
    "nothing is ever known": ("batching.py", NEWEST, "newest = UNKNOWN", "with a lag of 0 the spans"),
    "the same position is planned again": (
        "batching.py",
        "s.planned = end + 1\n",
        "s.planned = end\n",
        "four steps go like this: launch 1, launch 2, wait 1, launch 3, wait 2, launch 4, wait 3, wait 4; yours",
    ),
    "planned past the end": (
        "batching.py",
        " and end < s.longest",
        "",
        "four steps go like this: launch 1, launch 2, wait 1, launch 3, wait 2, launch 4, wait 3, wait 4; yours",
    ),
    "a token after the stop is passed on": (
        "batching.py",
        LATE,
        LATE + "                outputs.append(sequence.accept(sampled))\n",
        "a's answer ends with its stop token: [13, 14]; yours is [13, 14, 15]",
    ),
    "who stopped is finished a second time": (
        "batching.py",
        LATE + "                continue\n",
        "",
        "when checking that no token comes after a stop that is seen late",
    ),
    "a committed plan is not counted": (
        "batching.py",
        "        self.committed += 1\n",
        "",
        "steps under way: 1; by the scheduler's books 2",
    ),
    "tokens are recorded in the batch's order": (
        "runner.py",
        RECORDED,
        "self.tokens[: len(slots)] = tokens",
        "slots 0, 1 and 2 sampled 70, 71 and 72, and start from these; yours: [72, 70, 71]",
    ),
    "a step forgets what others have sampled": (
        "runner.py",
        RECORDED,
        f"self.tokens.zero_()\n        {RECORDED}",
        "slot 3 sampled 73 a step ago and slot 1 sampled 71 since: [73, 71]; yours: [0, 71]",
    ),
    "a row for a span": (
        "runner.py",
        "[batch.query_start[i] for i in unknown]",
        "[i for i in unknown]",
        "of a prompt, a decode with a hole and one without come [5, 6, 7, 72, 8]; yours: [5, 72, 7, -1, 8]",
    ),
    "what is known is filled in, too": (
        "runner.py",
        HOLES,
        "]",
        "come [5, 6, 7, 72, 8]; yours: [71, 6, 7, 72, 70]",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = solution(name)
    assert source.count(right) == 1
    verdict = checked("p10", source.replace(right, wrong), exercise_of(phases.find("p10"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence
    assert verdict.test.startswith("tests/phases/test_promises") and "\n" not in verdict.sentence


@pytest.mark.stress
def test_what_the_third_hints_say_is_a_solution(checked):
    verdict = checked("p10", solution("batching.py"), exercise_of(phases.find("p10"), Path("batching.py")))
    assert verdict.passed, verdict.sentence
