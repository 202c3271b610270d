"""The open task: a drafter of your own, judged by what its guesses cost and save.

The text is the course's own code, a word or a sign per token, and the numbers of the words are drawn anew in each
trial: a drafter knows nothing but the text so far. A step costs 1, and each draft that it verifies a little more. So
it matters as much when to guess nothing as what to guess.
"""

import re
from random import Random
from typing import Any

from gradus import phases
from gradus.course.open.declaration import Open, Refused, Trial
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import Sequence, SpanResult
from phases.p08_speculation.verification import accepted

START = '''"""p08's open task. So far this is p08's own drafter with up to four drafts, which scores 1.00."""

from collections.abc import Sequence as Ordered

from gradus.engine.sequence import Sequence
from phases.p08_speculation.drafting import NGramDrafter


class Drafter(NGramDrafter):
    """Change what you like: what is looked up, which continuation is guessed, how many tokens of it.

    A new one is made for each text. A step costs 1, and each draft 0.1.
    """

    def propose(self, asked: Ordered[tuple[Sequence, int]]) -> list[list[int]]:
        return super().propose([(sequence, min(room, 4)) for sequence, room in asked])
'''

READ, WRITTEN = 1500, 500  # tokens of the prompt, and of the answer
MOST_DRAFTS, DRAFT = 12, 0.1  # the room of a step, and what a draft costs


def text(random: Random) -> list[int]:
    """A stretch of a phase's code as token ids, which are drawn anew."""
    files = sorted(random.choice(phases.available()).path.glob("*.py"))
    random.shuffle(files)
    code = "".join(file.read_text(encoding="utf-8") for file in files)
    words = re.findall(r"\w+|[^\w\s]|\n *", code)
    begin = random.randrange(max(1, len(words) - READ - WRITTEN))
    stretch = words[begin : begin + READ + WRITTEN]
    known = sorted(set(stretch))
    ids = dict(zip(known, random.sample(range(100_000), len(known)), strict=True))
    return [ids[word] for word in stretch]


def steps(drafter: Any, tokens: list[int]) -> tuple[int, int]:
    """Run a drafter through a text as p08's engine would. Returns the steps, and the drafts that they verified."""
    limits = ModelLimits(100_000, 2 * len(tokens))
    params = SamplingParams(max_tokens=len(tokens) - READ, ignore_eos=True)
    sequence, count, verified = Sequence(Request.create("r", tokens[:READ], params, limits), 0), 0, 0
    while (place := len(sequence.tokens)) < len(tokens):
        room = min(MOST_DRAFTS, len(tokens) - place - 1)
        drafts = drafter.propose([(sequence, room)])[0] if room else []
        if len(drafts) > room or sequence.tokens != tokens[:place]:
            raise Refused(f"a step has room for {room} drafts, and a drafter only reads its sequence")
        right = accepted(drafts, tokens[place:])
        sequence.accept(SpanResult(tuple(tokens[place : place + right + 1])))
        count, verified = count + 1, verified + len(drafts)
    return count, verified


def trial(yours: Any, seed: int) -> Trial:
    """Ten stretches of text, each with a new drafter."""
    random, cost = Random(seed), 0.0
    for _ in range(10):
        count, verified = steps(yours.Drafter(), text(random))
        cost += count + DRAFT * verified
    return {"cost": cost}


TASK = Open(
    goal="Write a drafter with which the course's code costs 3 % less than with p08's: a step costs 1, a draft 0.1.",
    counts="cost",
    unit="steps' worth of time",
    reach=0.97,
    trial=trial,
    start=START,
)
