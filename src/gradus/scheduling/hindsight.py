"""Finds out whether drafts looked up in the text would have been right, without verifying any. No torch here.

A drafter that looks drafts up (`gradus.speculative.ngram`) proposes what followed the newest tokens when they last
occurred. The host has the same tokens one step later. So it guesses the next token in the same way, and sees in the
next step whether it came. A sequence that copies is known as soon as it copies, and no step is spent on trials.

The drafter prefers the longest agreement with an earlier place. Here a guess that was right is followed by the next
token after it, since the agreement has grown; otherwise the last place of the newest two tokens counts.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gradus.engine.plan import Column, Decodes

PAIR = 1 << 32  # two tokens in one number
MOST_READ = 512  # tokens of new texts in a step: 0.15 ms
IN_A_ROW = 3  # right guesses, which hardly come by chance: the sequence has begun to copy


class Text:
    """A sequence's tokens, and guesses of the next one. Takes some 200 bytes and 0.3 µs to read per token.

    Since they were last taken: steps without drafts, how many of their tokens were guessed at all (found), and how many
    rightly. Where the sequence has begun to copy, most steps before are left out; what they found is `earlier`. run:
    right guesses in a row.
    """

    __slots__ = ("_ends", "_place", "_tokens", "earlier", "found", "right", "run", "steps")

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)
        said = np.array(tokens, np.int64)
        pairs = (said[:-1] * PAIR + said[1:]).tolist()
        self._ends = dict(zip(pairs[:-1], range(1, len(pairs)), strict=True))  # each pair's last place
        # the last place of the run that was found, whose next token is the guess; -1 if none was found
        self._place = self._ends.get(pairs[-1], -1) if pairs else -1
        self._ends.update({pair: len(pairs) for pair in pairs[-1:]})
        self.run = self.steps = self.found = self.earlier = self.right = 0

    @property
    def guess(self) -> int:
        """The next token; -1 if nothing was found."""
        return self._tokens[self._place + 1] if self._place >= 0 else -1

    def judge(self, token: int) -> bool:
        """Compare the guess with the token that came. Returns whether with it, IN_A_ROW of them have been right."""
        guess = self.guess
        right = guess == token
        self.steps += 1
        self.found += guess >= 0
        self.right += right
        self.run = self.run + 1 if right else 0
        if self.run != IN_A_ROW:
            return False
        # as many steps before the run count as in it: it may have come by chance
        self.earlier += max(0, self.found - IN_A_ROW)
        self.steps, self.found = min(self.steps, 2 * IN_A_ROW), min(self.found, IN_A_ROW)
        return True

    def extend(self, new: Iterable[int]) -> None:
        """Append the tokens of a step, up to the first that is marked as missing, and guess the next one."""
        tokens, ends = self._tokens, self._ends
        for token in new:
            if token < 0:
                return
            pair, place = tokens[-1] * PAIR + token, self._place
            self._place = place + 1 if place >= 0 and tokens[place + 1] == token else ends.get(pair, -1)
            ends[pair] = len(tokens)
            tokens.append(token)

    def take(self) -> tuple[int, int, int, int]:
        """Return the steps, found, tried and right since the last call: see `Hindsight.take`."""
        taken = self.steps, self.found, self.found + self.earlier, self.right
        self.steps = self.found = self.earlier = self.right = 0
        return taken


class Hindsight:
    """Guesses the next token of sequences, by slot.

    verifies: whether a slot's drafts would be verified at all; None if every slot's are. stirred: whether a sequence
    without drafts has begun to copy since the last `take`.
    """

    def __init__(self, verifies: Callable[[int], bool] | None = None) -> None:
        self._verifies, self.stirred = verifies, False
        self._texts: dict[int, Text | None] = {}  # None for a slot that verifies no drafts

    def forget(self, slot: int) -> None:
        """Forget the slot's text: it has a new owner."""
        self._texts.pop(slot, None)

    def rest(self) -> None:
        """Forget all texts, which go on without being judged."""
        self._texts.clear()

    def judge(self, decodes: Decodes, tokens: Column, ended: Sequence[int]) -> None:
        """Compare a finished step's tokens with the guesses made before it, and guess the next ones.

        decodes: of the step, with their owners, whose lists lack the step's tokens. tokens: [B, width], as in
        `Sampled.decoded`. ended: the rows that do not count.

        A step reads new texts of MOST_READ tokens, or one: where many sequences begin together, the next steps have
        time for the others.
        """
        assert decodes.owners is not None
        texts, slots, room = self._texts, decodes.slots.tolist(), MOST_READ
        drafts = decodes.drafts.tolist() if len(decodes.drafts) else [0] * len(slots)
        for row, (slot, new, drafted) in enumerate(zip(slots, tokens.tolist(), drafts, strict=True)):
            if row in ended:
                continue
            if slot not in texts:
                if room <= 0:
                    continue
                said = decodes.owners[row].tokens
                verified = self._verifies is None or self._verifies(slot)
                texts[slot] = Text(said) if verified else None
                room -= len(said)
            text = texts[slot]
            if text is not None:
                if drafted:
                    text.run = 0
                else:
                    self.stirred |= text.judge(new[0])
                text.extend(new)

    def take(self, slots: Column) -> Column:
        """Return what was found since the last call: int64 [4, B]. As if each guess had been a draft: the steps that
        were judged, those with a guess, the guesses, and those that were right."""
        self.stirred = False
        texts = [self._texts.get(slot) for slot in slots.tolist()]
        return np.array([(0, 0, 0, 0) if text is None else text.take() for text in texts], np.int64).reshape(-1, 4).T
