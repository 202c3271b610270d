"""The mistakes that p13's second half invites are caught, and the check says in a sentence what is wrong."""

from pathlib import Path

import pytest

from gradus import phases
from tests.course.conftest import exercise_of, mistakes, reference

WRONG = {
    # the file, the right text, the wrong text, what the sentence must say
    "the first token counts as a gap": (
        "goodput.py",
        "(record.tokens - 1)",
        "record.tokens",
        "5 tokens have 4 gaps, in 2 s: 0.5; yours: 0.4",
    ),
    "one token has a pace": (
        "goodput.py",
        "record.tokens < 2",
        "record.tokens < 1",
        "division by zero",
    ),
    "an answer of one token keeps nothing": (
        "goodput.py",
        "(tpot(record) or 0.0) <= objective.tpot",
        "tpot(record) is not None and tpot(record) <= objective.tpot",
        "an answer of one token has no pace to judge: True; yours: False",
    ),
    "a failed request may be good": (
        "goodput.py",
        "if record.failed or record.ttft is None",
        "if record.ttft is None",
        "it broke off, however fast it was: False; yours: True",
    ),
    "one limit is enough": (
        "goodput.py",
        "record.ttft <= objective.ttft and (",
        "record.ttft <= objective.ttft or (",
        "its first token took 0.75 s: False; yours: True",
    ),
    "both ends of the window count": (
        "goodput.py",
        "if begin <= record.at < end]",
        "if begin <= record.at <= end]",
        "of 9.9, 10 and 14 only 10 lies in [10, 14): (0.25, 1.0); yours: (0.5, 1.0)",
    ),
    "a request counts where it ended": (
        "goodput.py",
        "if begin <= record.at < end]",
        "if record.last is not None and begin <= record.last < end]",
        "from 10 to 14 s",
    ),
    "failed requests are left out of the share": (
        "goodput.py",
        "if begin <= record.at < end]",
        "if begin <= record.at < end and not record.failed]",
        "2 of 4 are good: failed requests were requests: (0.5, 0.5); yours: (0.5, 1.0)",
    ),
    "goodput is a count": (
        "goodput.py",
        "good / (end - begin)",
        "float(good)",
        "3 good requests in 4 s: (0.75, 1.0); yours: (3.0, 1.0)",
    ),
    "the highest pass is promised": (
        "knee.py",
        "for point in known if point.rate < failed)",
        "for point in known if point.p99 <= limit)",
        "2 fails, so that 3 passes is luck: 1; yours: 3",
    ),
    "late points count": (
        "knee.py",
        "known = [point for point in points if valid(point, limit)]",
        "known = list(points)",
        "at 2 the client was 0.5 s late: no failure: 3; yours: 1",
    ),
    "every probe is sent": (
        "knee.py",
        "while max(votes) <= tries // 2:",
        "while sum(votes) < tries:",
        "no probe errs: 2 of 3 probes decide; yours sent 3",
    ),
    "one pass is enough": (
        "knee.py",
        "return votes[True] > tries // 2",
        "return votes[True] > 0",
        "the knee is at 5, the rate 6, probe 2 errs of 3: False; yours: True",
    ),
    "a late client is a failure": (
        "knee.py",
        'raise LateClient(f"at {rate:g} requests/s the client was {point.late:.3f} s late")',
        "return False",
        "the client of probe 1 was 1 s late: LateClient; yours: False",
    ),
    "the middle is a sum's": (
        "knee.py",
        "middle = (low * high) ** 0.5",
        "middle = (low + high) / 2",
        "1, 64, then 8, 22.6 and 13.5; yours: [1, 64, 32.5",
    ),
    "the lowest failure is returned": (
        "knee.py",
        "            high = middle\n    return low",
        "            high = middle\n    return high",
        "within 10 % below it",
    ),
    "the low end is not tried": (
        "knee.py",
        "    if not passes(probe, low, limit, tries):\n        return 0.0\n",
        "",
        "even 1 fails",
    ),
    "a block's name is that of its tokens": (
        "router.py",
        "before = blake2b(before + block.encode()).digest()\n        found.append(before)",
        "found.append(blake2b(before + block.encode()).digest())",
        "3 4 behind 1 2 is not 3 4 behind 9 2",
    ),
    "the salt is ignored": (
        "router.py",
        "blake2b(salt.encode()).digest()",
        "b''",
        "Ann's and Ben's salts differ",
    ),
    "tokens run together": (
        "router.py",
        '",".join(map(str',
        '"".join(map(str',
        "the tokens 1, 23 are not 12, 3",
    ),
    "half a block has a name": (
        "router.py",
        "range(0, len(prompt) - size + 1, size)",
        "range(0, len(prompt), size)",
        "0, 3, 4, 7 and 8 tokens in blocks of 4: [0, 0, 1, 1, 2]; yours: [0, 1, 1, 2, 2]",
    ),
    "blocks behind a gap count": (
        "router.py",
        "return next((place for place, name in enumerate(prompt) if name not in self.known), len(prompt))",
        "return sum(name in self.known for name in prompt)",
        "the replica has BC, the prompt is ABC: 0 blocks; yours: 2",
    ),
    "the beginning is the oldest": (
        "router.py",
        "for name in reversed(prompt):",
        "for name in prompt:",
        "a prompt's end is older than its beginning: BA, the oldest first; yours: AB",
    ),
    "what is used again stays old": (
        "router.py",
        "            self.known.pop(name, None)\n",
        "",
        "what is used again is new again: CBA, the oldest first; yours: BAC",
    ),
    "nothing is evicted": (
        "router.py",
        "while len(self.known) > self.room:",
        "while False:",
        "there is room for 3: the end of the oldest prompt goes, B",
    ),
    "the newest is evicted": (
        "router.py",
        "del self.known[next(iter(self.known))]",
        "self.known.popitem()",
        "there is room for 3",
    ),
    "the longest prefix always wins": (
        "router.py",
        "    if max(loads) - min(loads) > bound:\n        return loads.index(min(loads))\n",
        "",
        "5 more inside is more than 4: the idlest: replica 0; yours: 1",
    ),
    "the bound is on one replica's load": (
        "router.py",
        "if max(loads) - min(loads) > bound:",
        "if max(loads) > bound:",
        "bound 4",
    ),
    "ties go to the first": (
        "router.py",
        "(replicas[number].matched(prompt), -loads[number], -number)",
        "(replicas[number].matched(prompt), -number)",
        "all know as much: the idlest: replica 1; yours: 0",
    ),
    "ties go to the busiest": (
        "router.py",
        "-loads[number], -number)",
        "loads[number], -number)",
        "all know as much: the idlest: replica 1; yours: 0",
    ),
    "to be asked is use": (
        "router.py",
        "        return next((place",
        "        for name in prompt:\n            if name in self.known:\n"
        "                self.known[name] = self.known.pop(name)\n        return next((place",
        "to be asked for A is no use of it, so D takes its place: BCD; yours: CAD",
    ),
    "the salt is in every block, and what came before in none": (
        "router.py",
        "blake2b(before + block.encode())",
        "blake2b(salt.encode() + block.encode())",
        "3 4 behind 1 2 is not 3 4 behind 9 2",
    ),
    "precision is in requests per second": (
        "knee.py",
        "high > low * (1 + precision)",
        "high - low > precision",
        "within 5 % after 9 probes; yours took 13",
    ),
    "a rate that passed once passes": (
        "knee.py",
        "if point.rate < failed",
        "if point.rate <= failed and point.p99 <= limit",
        "2 passes once and fails once, so it cannot be promised: 1; yours: 2",
    ),
    "busy is more than the average": (
        "router.py",
        "max(loads) - min(loads) > bound",
        "max(loads) - sum(loads) / len(loads) > bound",
        "5 more inside is more than 4: the idlest: replica 0; yours: 1",
    ),
}


@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = reference("p13", name)
    assert source.count(right) == 1
    verdict = checked("p13", source.replace(right, wrong), exercise_of(phases.find("p13"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence, verdict.sentence
    assert verdict.test.startswith("tests/phases/test_promises_load.py") and "\n" not in verdict.sentence
