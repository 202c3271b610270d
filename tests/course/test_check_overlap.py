"""The mistakes that p10 invites are caught, and the check says in a sentence what is wrong; of three files, which."""

from pathlib import Path

import pytest

from gradus import phases
from tests.course.conftest import exercise_of, mistakes, reference

COUNTED = "        self.unknown[sequence] += span.logits\n"
LATE = "        if sequence.finish_reason is not None:\n            return []  # computed in vain\n"
PREEMPTED = (
    "        if sequence.id not in self.cache.block_tables:\n"
    "            return self.record_preempted(sequence, span, sampled)\n"
)
RECORDED = "self.tokens[upload(slots, torch.int64, self.tokens.device)] = sampled.clamp(min=0)"
HOLES = "if span.tokens[0] == UNKNOWN]"

WRONG = {
    # file, the right text, the wrong text, what the sentence must say
    "the newest known token stands in for the one that is not known": (
        "scheduler.py",
        "(UNKNOWN,), 1",
        "(sequence.tokens[-1],), 1",
        "with a lag of 1 the spans (start, tokens) are [(0, (5, 6, 7)), (3, (-1,)), (4, (-1,)), (5, (-1,))]; yours are "
        "[(0, (5, 6, 7)), (3, (7,))",
    ),
    "what a span will sample is not counted": (
        "scheduler.py",
        COUNTED,
        "",
        "four steps go like this: launch 1, launch 2, wait 1, launch 3, wait 2, launch 4, wait 3, wait 4; yours",
    ),
    "planned past the end": (
        "scheduler.py",
        "if self.length(sequence) < sequence.longest:",
        "if True:",
        "four steps go like this: launch 1, launch 2, wait 1, launch 3, wait 2, launch 4, wait 3, wait 4; yours",
    ),
    "a span ends at what is known": (
        "scheduler.py",
        "return min(self.length(sequence),",
        "return min(len(sequence.tokens),",
        "yours are [(0, (5, 6, 7)), (3, (-1,)), (3, (13,)), (4, (14,))]",
    ),
    "a token after the stop is passed on": (
        "scheduler.py",
        LATE,
        LATE.replace("return []  # computed in vain", "return [sequence.accept(sampled)]"),
        "a's answer ends with its stop token: [13, 14]; yours is [13, 14, 15]",
    ),
    "a sequence that stopped is finished a second time": (
        "scheduler.py",
        LATE,
        "",
        "no token comes after a stop that is seen late",
    ),
    "a preempted sequence is recorded as if it ran": (
        "scheduler.py",
        PREEMPTED,
        "",
        "led to KeyError: ('b', 0), raised in PrefixCache.publish",
    ),
    "a preempted sequence starts before its tokens are known": (
        "scheduler.py",
        "return self.length(sequence) == len(sequence.tokens) and super()",
        "return super()",
        "b resumes with its prompt and the tokens 13 and 14; yours: (0, (5, 6, 7, 13))",
    ),
    "sequences that have ended are never forgotten": (
        "scheduler.py",
        "            del self.unknown[sequence]  # nothing is kept of a sequence that has ended\n",
        "            pass\n",
        "a, b and c have ended, and `unknown` still has entries of a, b, c",
    ),
    "no token is recorded as a token": (
        "runner.py",
        RECORDED,
        RECORDED.replace(".clamp(min=0)", ""),
        "slot 0 sampled -1, for none, and slot 1 sampled 71: [0, 71]; yours: [-1, 71]",
    ),
    "tokens are recorded in the batch's order": (
        "runner.py",
        RECORDED,
        "self.tokens[: len(slots)] = sampled.clamp(min=0)",
        "slots 0, 1 and 2 sampled 70, 71 and 72, and start from these; yours: [72, 70, 71]",
    ),
    "a step forgets what others have sampled": (
        "runner.py",
        RECORDED,
        f"self.tokens.zero_()\n        {RECORDED}",
        "slot 3 sampled 73 a step ago and slot 1 sampled 71 since: [73, 71]; yours: [0, 71]",
    ),
    "one row is taken for each span": (
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
    "padding keeps the block tables of a larger batch": (
        "graph_runner.py",
        "        self.tables[count:size] = 0\n",
        "",
        "a padded row wrote to a page of a sequence that is not in this step",
    ),
    "padding keeps the lengths of a larger batch": (
        "graph_runner.py",
        "        self.lengths[count:size] = 0\n",
        "",
        "three sequences of 3 tokens and a padded row: [3, 3, 3, 0]; yours [3, 3, 3, 3]",
    ),
    "the inputs are new tensors at each step": (
        "graph_runner.py",
        "self.token_ids[:count] = batch.token_ids",
        "self.token_ids = torch.cat((batch.token_ids, self.token_ids[count:]))",
        "a replay gives what was recorded, not what the inputs hold now",
    ),
    "lengths do not count the new token": (
        "graph_runner.py",
        "self.lengths[:count] = batch.positions + 1",
        "self.lengths[:count] = batch.positions",
        "a replay gives what was recorded, not what the inputs hold now",
    ),
    "the positions are asked for on the host": (
        "graph_runner.py",
        "positions = (self.lengths[:size] - 1).clamp(min=0)",
        "positions = torch.tensor([max(int(length) - 1, 0) for length in self.lengths[:size]])",
        "a replay gives what was recorded, not what the inputs hold now",
    ),
    "nothing is replayed": (
        "graph_runner.py",
        "        if max(batch.counts) > 1:\n",
        "        if batch.counts:\n",
        "the second step is replayed, in the graph of one row; yours: []",
    ),
    "the largest graph does for all": (
        "graph_runner.py",
        "next(size for size in self.sizes if size >= len(batch.slots))",
        "self.sizes[-1]",
        "the second step is replayed, in the graph of one row; yours: [6]",
    ),
    "a sequence waits for its token in flight": (
        "scheduler.py",
        "if self.length(sequence) < sequence.longest:",
        "if self.length(sequence) < sequence.longest and not self.unknown[sequence]:",
        "with a lag of 1 four steps go like this: launch 1, launch 2, wait 1",
    ),
    "the token of a preempted sequence is dropped": (
        "scheduler.py",
        "return self.record_preempted(sequence, span, sampled)",
        "return []",
        "b resumes with its prompt and the tokens 13 and 14; yours: (0, (5, 6, 7))",
    ),
    "a span has every token in flight": (
        "scheduler.py",
        "(UNKNOWN,), 1",
        "(UNKNOWN,) * max(1, self.unknown[sequence]), 1",
        "(4, (-1,)), (5, (-1,))]; yours are [(0, (5, 6, 7)), (3, (-1,)), (4, (-1, -1))",
    ),
}


@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = reference("p10", name)
    assert source.count(right) == 1
    verdict = checked("p10", source.replace(right, wrong), exercise_of(phases.find("p10"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence, verdict.sentence
    assert verdict.test.startswith("tests/phases/test_promises") and "\n" not in verdict.sentence
