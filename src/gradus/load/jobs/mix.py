"""Jobs drawn from lengths and shared beginnings. The same seed draws the same jobs on every machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from gradus.load.jobs.job import Job
from gradus.load.jobs.lengths import Lengths

# Byte-pair vocabularies commonly hold these as one token with the space before them, so a text of n of them has about
# n tokens.
_COMMON = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its "
    "about than into them can only other time new some could these two may first then do any like my now over such "
    "our man me even most made after also did many off before must well back through years where much your way down "
    "should because long"
)
WORDS = _COMMON.split()


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests of one kind. prompt, output: the lengths in tokens.

    beginnings: how many different ones there are. shared: the share of prompts that begin with one of them. beginning:
    its tokens. within: they are among the prompt's own; otherwise they come before it. capped: they make no prompt
    longer than the longest of `prompt`.
    """

    prompt: Lengths
    output: Lengths
    beginnings: int = 0
    shared: float = 0.0
    beginning: int = 0
    within: bool = False
    capped: bool = False

    @property
    def most_prompt(self) -> int:
        return self.prompt.high if self.within or self.capped else self.prompt.high + self.beginning

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and answer."""
        return self.most_prompt + self.output.high

    def jobs(self, times: Sequence[float], vocab_size: int, seed: str, *, beginnings: str = "") -> list[Job]:
        """Draw a job for each time. Different seeds share no prompt.

        beginnings: the seed of the shared beginnings, by default `seed`: runs that are to find them in a cache, as a
        server's real system prompts are found, pass the same one.
        """
        lengths, ids = Random(f"{seed} lengths"), Random(f"{seed} ids")
        same = Random(f"{beginnings or seed} beginnings")
        kept = [random_ids(same, self.beginning, vocab_size) for _ in range(self.beginnings)]
        jobs = []
        for at in times:
            begin = kept[int(lengths.random() * len(kept))] if kept and lengths.random() < self.shared else ()
            length = self.prompt.draw(lengths)
            if begin and not self.within:
                length = min(self.most_prompt, length + len(begin))
            begin = begin[:length]
            prompt = (*begin, *random_ids(ids, length - len(begin), vocab_size))
            jobs.append(Job(at, prompt, self.output.draw(lengths)))
        return jobs


def random_ids(random: Random, count: int, vocab_size: int) -> tuple[int, ...]:
    draw = random.random
    return tuple([int(draw() * vocab_size) for _ in range(count)])


def as_text(prompt: tuple[int, ...] | str) -> str:
    """A text of about as many tokens as the prompt has ids, which begins like other texts where the ids do."""
    return prompt if isinstance(prompt, str) else " ".join([WORDS[token % len(WORDS)] for token in prompt])


CHAT = Mix(Lengths(16, 3000, 200, 3), Lengths(8, 800, 120, 2.5), beginnings=4, shared=0.4, beginning=512, capped=True)
"""A chat server's requests: most are short and a few very long, and 40 % begin with one of four system prompts."""

MIXES = {"chat": CHAT}
