"""The mistakes that p11 invites are caught, and the check says in a sentence what is wrong."""

from pathlib import Path

import pytest

from gradus import phases
from tests.course.conftest import exercise_of, mistakes, reference

WRONG = {
    # the file, the right text, the wrong text, what the sentence must say
    "jumps are followed once": (
        "dfa.py",
        "                left.append(state)\n",
        "",
        "a*b takes bytes in [1, 3] when it is in [0]; yours says [1]",
    ),
    "states that only jump are kept": (
        "dfa.py",
        "frozenset(state for state in found if nfa.moves[state] or not nfa.jumps[state])",
        "frozenset(found)",
        "a*b takes bytes in [1, 3] when it is in [0]; yours says [0, 1, 3]",
    ),
    "a later move takes the place of an earlier one": (
        "dfa.py",
        "behind.setdefault(byte, set()).add(target)",
        "behind[byte] = {target}",
        "0 takes a–b to 2, 1 takes b–c to 3 and a to 2",
    ),
    "the last byte of a range is left out": (
        "dfa.py",
        "range(first, last + 1)",
        "range(first, last)",
        "0 takes a–b to 2, 1 takes b–c to 3 and a to 2",
    ),
    "the jumps behind a byte are forgotten": (
        "dfa.py",
        "behind = closure(nfa, targets)",
        "behind = frozenset(targets)",
        "'aaab' matches a*b; yours says False",
    ),
    "every set is a new state": (
        "dfa.py",
        "            if behind not in numbers:\n",
        "            if len(numbers) < 9:\n",
        "at most 4,096 states, got a larger one",
    ),
    "a state accepts if all of its states do": (
        "dfa.py",
        "[last in states for states in found]",
        "[states == {last} for states in found]",
        "all of '', 'a' and 'aa' match a*; yours says",
    ),
    "a branch is not skipped": (
        "masks.py",
        "            place = after\n",
        "            place += 1\n",
        "raised KeyError: 1, when checking that a token is legal if the automaton follows it to its last byte",
    ),
    "only whole matches are legal": (
        "masks.py",
        "            found += tokens\n",
        "            found += tokens if dfa.accepting[behind] else []\n",
        "ba goes on behind the end, c is not in it, and token 5 is no text",
    ),
    "no mask is kept": (
        "masks.py",
        "        if state not in self.kept:\n",
        "        if True:\n",
        "every state's mask is kept: asked for those of 0, 1, 0, yours looks",
    ),
    "the kept mask is handed out": (
        "masks.py",
        "= bytes(mask)\n        return torch.frombuffer(bytearray(self.kept[state]), dtype=torch.bool)",
        "= mask\n        return torch.frombuffer(self.kept[state], dtype=torch.bool)",
        "stop tokens are the request's: the masks that are kept know none",
    ),
    "the end may come anywhere": (
        "matcher.py",
        "return state if complete or token not in self.stops else None",
        "return state",
        "the end has to wait",
    ),
    "a stop token of text is judged before it": (
        "matcher.py",
        "complete = state is not None and self.masks.dfa.accepting[state]",
        "complete = self.masks.dfa.accepting[self.states[-1]]",
        "token 10, which stops too, makes the answer complete",
    ),
    "control tokens pass": (
        "matcher.py",
        "        if not text and token not in self.stops:\n            return None\n",
        "",
        "after the tokens (), 11 may not come: ValueError; yours takes it",
    ),
    "the mask forgets the stops": (
        "matcher.py",
        "        for token in self.stops:\n            mask[token] = self.behind(token) is not None\n",
        "",
        "the answer is ab, and complete: nothing but its end",
    ),
    "a token that may not come counts": (
        "matcher.py",
        '        if state is None:\n            raise ValueError(f"token {token} may not come next")\n',
        "",
        "after the tokens (), 9 may not come: ValueError; yours takes it",
    ),
    "nothing taken back is everything": (
        "matcher.py",
        "del self.states[len(self.states) - tokens :]",
        "del self.states[-tokens:]",
        "taken back by 0 is (0, 6)",
    ),
    "jumps in a circle never end": (
        "dfa.py",
        "            if state not in found:\n                found.add(state)\n                left.append(state)",
        "            found.add(state)\n            left.append(state)",
        "it takes too long: closure (dfa.py, line",
    ),
    "there may be any number of states": (
        "dfa.py",
        "                if len(found) == MOST_STATES:\n                    raise too_large(MOST_STATES)\n",
        "",
        "4096 times a needs 4097 states, and MOST_STATES is 4096: RequestError; yours: 4097 states",
    ),
    "one state fewer than the limit": (
        "dfa.py",
        "len(found) == MOST_STATES",
        "len(found) == MOST_STATES - 1",
        "4095 times a needs 4096 states, and MOST_STATES is 4096: 4096 states; yours: RequestError",
    ),
    "sets are numbered as they are walked": (
        "dfa.py",
        "numbers[behind] = len(found)",
        "numbers[behind] = len(steps)",
        "aa|ab|bb; yours says",
    ),
    "the jumps of one target alone": (
        "dfa.py",
        "behind = closure(nfa, targets)",
        "behind = closure(nfa, [min(targets)])",
        "'ab' matches aa|ab|bb; yours says False",
    ),
    "one mask is kept at a time": (
        "masks.py",
        "            self.kept[state] = bytes(mask)",
        "            self.kept = {state: bytes(mask)}",
        "every state's mask is kept: asked for those of 0, 1, 0, yours looks",
    ),
    "one state for all depths": (
        "masks.py",
        "states[depth + 1] = behind",
        "states = dict.fromkeys(range(99), behind)",
        "in state 0 of a*b: [0, 1, 2, 3, 7, 8] (ba goes on behind the end, c is not in it, and token 5 is no "
        "text); yours says [0, 3, 7, 8]",
    ),
    "a branch ends with its first token": (
        "masks.py",
        "            found += tokens\n            place += 1",
        "            found += tokens\n            place = after if tokens else place + 1",
        "in state 0 of a*b: [0, 1, 2, 3, 7, 8] (ba goes on behind the end, c is not in it, and token 5 is no "
        "text); yours says [0, 1, 8]",
    ),
    "the newest state alone is kept": (
        "matcher.py",
        "self.states.append(state)",
        "self.states[-1] = state",
        "there are not as many: Matcher.roll_back",
    ),
}


@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = reference("p11", name)
    assert source.count(right) == 1
    verdict = checked("p11", source.replace(right, wrong), exercise_of(phases.find("p11"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence, verdict.sentence
    assert verdict.test.startswith("tests/phases/test_promises_masks.py") and "\n" not in verdict.sentence
