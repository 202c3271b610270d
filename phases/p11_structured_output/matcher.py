"""How far one answer has come: the automaton's state behind each of its tokens, and what may come next."""

from collections.abc import Iterable
from collections.abc import Sequence as Ordered

from torch import Tensor

from phases.p11_structured_output.masks import TokenMasks


class Matcher:
    """Follows one sequence's answer, token by token. It may be sent back by any number of them.

    stops: the tokens that end the answer. They may come only where the answer is complete.
    ends: those of them that are the model's own. They add nothing to the text, whatever their bytes are.
    """

    def __init__(self, masks: TokenMasks, stops: Iterable[int], ends: Iterable[int]) -> None:
        self.masks = masks
        self.stops, self.ends = frozenset(stops), frozenset(ends)
        self.states = [0]  # behind the prompt, and behind each token of the answer

    def behind(self, token: int) -> int | None:
        """The state that this token leads to from the newest one; None if it may not come."""
        text = b"" if token in self.ends else self.masks.vocabulary[token]
        if not text and token not in self.stops:
            return None
        state = self.masks.dfa.follow(self.states[-1], text)
        complete = state is not None and self.masks.dfa.accepting[state]
        return state if complete or token not in self.stops else None

    def allowed(self) -> Tensor:
        """Whether each token may come next: bool [V], on the host."""
        mask = self.masks.mask(self.states[-1])
        for token in self.stops:
            mask[token] = self.behind(token) is not None
        return mask

    def advance(self, token: int) -> None:
        """Raises ValueError for a token that may not come next."""
        state = self.behind(token)
        if state is None:
            raise ValueError(f"token {token} may not come next")
        self.states.append(state)

    def roll_back(self, tokens: int) -> None:
        """Forget the last tokens, stop tokens included."""
        assert 0 <= tokens < len(self.states), "there are not as many"
        del self.states[len(self.states) - tokens :]

    def rows(self, drafts: Ordered[int]) -> list[Tensor]:
        """The masks of a verification (p08): for the newest token's row, and each draft's up to one that is illegal."""
        masks, states = [self.allowed()], len(self.states)
        for draft in drafts:
            if not masks[-1][draft]:
                break
            self.advance(draft)
            masks.append(self.allowed())
        self.roll_back(len(self.states) - states)
        return masks
