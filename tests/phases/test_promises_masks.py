"""The promises of p11's parts: an automaton over bytes, the tokens that it can follow, an answer taken back.

Each case is small enough to work out by hand.
"""

import pytest

from gradus.errors import RequestError
from phases.p11_structured_output.dfa import MOST_STATES, Dfa, closure, moved, subsets
from phases.p11_structured_output.masks import TokenMasks, TreeNode, legal, tree_of
from phases.p11_structured_output.matcher import Matcher
from phases.p11_structured_output.nfa import Nfa
from tests.phases.conftest import of

A, B, C = b"abc"


def shown(text: bytes) -> str:
    return text.decode("latin1")


# -- the automaton -----------------------------------------------------------------------------------------------------

# a*b: state 0 jumps to the loop, 1; 'a' leads to 2, which jumps back; the loop jumps to 3, and 'b' leads to the end, 4
LOOP = Nfa(moves=[[], [(A, A, 2)], [], [(B, B, 4)], []], jumps=[[1], [3], [1], [], []])


@of("p11")
@pytest.mark.parametrize(
    ("states", "wanted"),
    [([0], {1, 3}), ([2], {1, 3}), ([4], {4}), ([0, 4], {1, 3, 4}), ([], set())],
)
def test_jumps_are_taken_over_any_number_of_states_and_back_again(phase, states, wanted):
    found = closure(LOOP, states)
    said = f"a*b takes bytes in {sorted(wanted)} when it is in {states}"  # or ends there: 4 takes none, and never jumps
    assert set(found) == wanted, f"{said}; yours says {sorted(found)}"


@of("p11")
def test_the_states_that_come_with_others_are_a_key_and_the_given_ones_stay(phase):
    states = [0]
    assert {closure(LOOP, states): 1} and states == [0], "return a frozenset, and leave the given states as they are"


@of("p11")
def test_a_byte_leads_to_all_states_that_any_of_the_states_leads_to(phase):
    nfa = Nfa(moves=[[(A, B, 2)], [(B, C, 3), (A, A, 2)], [], []], jumps=[[], [], [], []])
    wanted = {A: {2}, B: {2, 3}, C: {3}}
    found = {byte: set(states) for byte, states in moved(nfa, [0, 1]).items()}
    assert found == wanted, f"0 takes a–b to 2, 1 takes b–c to 3 and a to 2: {wanted}; yours says {found}"


@of("p11")
def test_a_byte_that_no_state_takes_leads_nowhere(phase):
    found = moved(LOOP, [0, 2, 4])
    assert found == {}, f"0, 2 and 4 take no byte, they only jump; yours says {found}"


def accepted(dfa: Dfa, text: bytes) -> bool:
    state = dfa.follow(0, text)
    return state is not None and dfa.accepting[state]


@of("p11")
@pytest.mark.parametrize(
    ("text", "wanted"), [(b"b", True), (b"aaab", True), (b"", False), (b"aa", False), (b"bb", False), (b"ba", False)]
)
def test_one_state_at_a_time_says_what_many_states_at_once_say(phase, text, wanted):
    found = accepted(subsets(LOOP, last=4), text)
    does = "matches" if wanted else "does not match"
    assert found == wanted, f"{shown(text)!r} {does} a*b; yours says {found}"


@of("p11")
def test_a_set_of_states_that_was_seen_before_is_not_a_new_state(phase):
    dfa = subsets(LOOP, last=4)
    assert len(dfa.steps) == 2, f"a*b is before its b or behind it, 2 states; yours has {len(dfa.steps)}"
    wanted = [{A: 0, B: 1}, {}], [False, True]
    found = [dict(sorted(step.items())) for step in dfa.steps], dfa.accepting
    assert found == wanted, f"numbered as they are found, its steps are {wanted}; yours are {found}"


@of("p11")
def test_a_state_in_which_the_expression_may_end_accepts_though_it_may_go_on(phase):
    nfa = Nfa(moves=[[(A, A, 1)], [], []], jumps=[[2], [0, 2], []])  # a*: behind an a it jumps back, or to the end
    dfa = subsets(nfa, last=2)
    found = [accepted(dfa, text) for text in (b"", b"a", b"aa")]
    assert found == [True, True, True], f"all of '', 'a' and 'aa' match a*; yours says {found}"


@of("p11")
@pytest.mark.parametrize(("text", "wanted"), [(b"aa", True), (b"ab", True), (b"bb", True), (b"ba", False)])
def test_several_states_are_followed_at_once_and_several_sets_are_told_apart(phase, text, wanted):
    nfa = Nfa(moves=[[(A, A, 1), (A, A, 2), (B, B, 2)], [(A, A, 3)], [(B, B, 3)], []], jumps=[[], [], [], []])
    found = accepted(subsets(nfa, last=3), text)
    does = "matches" if wanted else "does not match"
    assert found == wanted, f"{shown(text)!r} {does} aa|ab|bb; yours says {found}"


@of("p11")
def test_jumps_in_a_circle_come_to_an_end(phase):
    nfa = Nfa(moves=[[], [], [(A, A, 2)]], jumps=[[1, 2], [0], []])  # as (a*)* has them
    found = closure(nfa, [0])
    assert found == {2}, f"0 and 1 jump to each other, and 0 to 2, which takes an a: {{2}}; yours: {set(found)}"


@of("p11")
def test_as_many_states_as_the_limit_are_built_and_one_more_is_refused(phase):
    for states in (MOST_STATES, MOST_STATES + 1):
        text = states - 1  # an a for each state but the last
        nfa = Nfa(moves=[*([(A, A, state + 1)] for state in range(text)), []], jumps=[[] for _ in range(states)])
        try:
            found = f"{len(subsets(nfa, last=text).steps)} states"
        except RequestError:
            found = "RequestError"
        wanted = f"{states} states" if states == MOST_STATES else "RequestError"
        assert found == wanted, (
            f"{text} times a needs {states} states, and MOST_STATES is {MOST_STATES}: {wanted}; yours: {found}"
        )


# -- the tokens --------------------------------------------------------------------------------------------------------

WORDS = [b"a", b"b", b"ab", b"aab", b"ba", b"", b"c", b"aa", b"a"]  # token 5 has no bytes, 8 is spelled like 0
STAR = Dfa([{A: 0, B: 1}, {}], [False, True])  # a*b


def paths(tree: list[TreeNode]) -> dict[bytes, list[int]]:
    text, found = b"", {}
    for node in tree:
        text = text[: node.depth] + bytes([node.byte])
        if node.tokens:
            found[text] = node.tokens
    return found


@of("p11")
def test_a_token_is_found_at_the_end_of_its_bytes(phase):
    found = paths(tree_of(WORDS))
    wanted = {b"a": [0, 8], b"b": [1], b"ab": [2], b"aab": [3], b"ba": [4], b"c": [6], b"aa": [7]}
    assert found == wanted, f"the tokens by their bytes are {wanted}; yours are {found}"


@of("p11")
def test_tokens_that_begin_alike_share_a_path(phase):
    nodes = [(shown(bytes([node.byte])), node.depth, node.after) for node in tree_of(WORDS)]
    wanted = [("a", 0, 4), ("a", 1, 3), ("b", 2, 3), ("b", 1, 4), ("b", 0, 6), ("a", 1, 6), ("c", 0, 7)]
    assert nodes == wanted, f"(byte, depth, after) of a, aa, aab, ab, b, ba, c: {wanted}; yours are {nodes}"


@of("p11")
@pytest.mark.parametrize(
    ("state", "wanted", "why"),
    [
        (0, [0, 1, 2, 3, 7, 8], "ba goes on behind the end, c is not in it, and token 5 is no text"),
        (1, [], "b was the end, so no token may come"),
    ],
)
def test_a_token_is_legal_if_the_automaton_follows_it_to_its_last_byte(phase, state, wanted, why):
    found = sorted(legal(tree_of(WORDS), STAR, state))
    assert found == wanted, f"of {WORDS}, in state {state} of a*b: {wanted} ({why}); yours says {found}"


@of("p11")
def test_a_token_may_end_in_the_middle_of_a_character(phase):
    euro = "€".encode()
    step = [{euro[0]: 1}, {euro[1]: 2}, {euro[2]: 3}, {}]
    dfa = Dfa(step, [False, False, False, True])
    vocabulary = [euro[:1], euro[:2], euro, euro[1:], b"e"]
    for state, wanted in ((0, [0, 1, 2]), (1, [3]), (2, [])):
        found = sorted(legal(tree_of(vocabulary), dfa, state))
        assert found == wanted, f"{state} bytes into the three of €, tokens {wanted} continue it; yours says {found}"


class Counted(list[dict[int, int]]):
    """An automaton's steps that count how often they are looked at."""

    looks = 0

    def __getitem__(self, state):
        self.looks += 1
        return super().__getitem__(state)


@of("p11")
def test_the_tokens_of_a_state_are_looked_for_once(phase):
    steps = Counted(STAR.steps)
    masks = TokenMasks(Dfa(steps, STAR.accepting), WORDS, tree_of(WORDS))
    first, _, looked = masks.mask(0).tolist(), masks.mask(1), steps.looks
    again = masks.mask(0).tolist()
    assert again == first, f"the second mask of a state is the first one, {first}; yours is {again}"
    more = steps.looks - looked
    assert more == 0, f"every state's mask is kept: asked for those of 0, 1, 0, yours looks {more} times for the last"


# -- the answer --------------------------------------------------------------------------------------------------------

END, STOP, CONTROL = 9, 10, 11  # the model's end, a token of text that the request stops at, and one without bytes
VOCABULARY = [*WORDS, b"", b"b", b""]


def matcher(*tokens: int, stops: tuple[int, ...] = (END, STOP)) -> Matcher:
    """Follows a*b, or a*c too if no b has come, which any further c may follow."""
    dfa = Dfa([{A: 0, B: 1, C: 2}, {}, {C: 2}], [False, True, True])
    found = Matcher(TokenMasks(dfa, VOCABULARY, tree_of(VOCABULARY)), stops, (END,))
    for token in tokens:
        found.advance(token)
    return found


def allowed(found: Matcher) -> list[int]:
    return found.allowed().nonzero().flatten().tolist()


@of("p11")
@pytest.mark.parametrize(
    ("answer", "wanted", "why"),
    [
        ((), [0, 1, 2, 3, 6, 7, 8, STOP], "the end has to wait; token 10, which stops too, makes the answer complete"),
        ((0,), [0, 1, 2, 3, 6, 7, 8, STOP], "a answer that goes on is not complete"),
        ((2,), [END], "the answer is ab, and complete: nothing but its end"),
        ((6,), [6, END], "the answer is c, which may go on or end"),
    ],
)
def test_text_comes_where_it_may_and_the_end_where_the_answer_is_complete(phase, answer, wanted, why):
    found = allowed(matcher(*answer))
    assert found == wanted, f"behind {answer} tokens {wanted} may come ({why}); yours says {found}"


@of("p11")
def test_a_token_of_text_that_stops_may_come_only_where_it_completes_the_answer(phase):
    stops = (END, 0, 1)  # a and b
    found = allowed(matcher(stops=stops))
    assert 1 in found and 0 not in found, f"b ends the answer where it is complete, a would cut it off; yours: {found}"


@of("p11")
def test_a_control_token_that_ends_nothing_never_comes(phase):
    for answer in ((), (2,), (6,)):
        found = allowed(matcher(*answer))
        assert CONTROL not in found, (
            f"token {CONTROL} is no text and ends nothing, so it never comes; after {answer} yours allows {found}"
        )


@of("p11")
def test_the_mask_of_one_answer_is_not_the_mask_of_another(phase):
    masks = matcher().masks
    first, second = Matcher(masks, (END,), (END,)), Matcher(masks, (STOP,), ())
    first.advance(2)
    first.allowed()
    second.advance(2)
    assert END not in allowed(second), "stop tokens are the request's: the masks that are kept know none"


@of("p11")
@pytest.mark.parametrize(("answer", "token"), [((), END), ((2,), 0), ((), 4), ((), CONTROL), ((6,), 1)])
def test_a_token_that_may_not_come_is_refused(phase, answer, token):
    found = matcher(*answer)
    try:
        found.advance(token)
        raise AssertionError(f"after the tokens {answer}, {token} may not come: ValueError; yours takes it")
    except ValueError as refused:
        assert f"{token}" in str(refused), f"the error says which token may not come, {token}; yours: {refused}"
    states = matcher(*answer).states
    assert found.states == states, (
        f"a token that is refused leaves no trace: after {answer} the states are {states}; yours: {found.states}"
    )


@of("p11")
@pytest.mark.parametrize(
    ("answer", "back", "wanted"),
    [((0, 2), 1, (0,)), ((0, 2, END), 1, (0, 2)), ((0, 7, 2), 3, ()), ((0, 6), 0, (0, 6)), ((6, 6, END), 2, (6,))],
)
def test_an_answer_that_is_taken_back_is_as_if_it_had_not_come(phase, answer, back, wanted):
    found, right = matcher(*answer), matcher(*wanted)
    found.roll_back(back)
    assert found.states == right.states, (
        f"{answer} taken back by {back} is {wanted}, in the states {right.states}; yours is in {found.states}"
    )
    assert allowed(found) == allowed(right)


@of("p11")
def test_a_verification_masks_each_row_and_leaves_the_answer_where_it_was(phase):
    found = matcher(0)
    rows = [row.nonzero().flatten().tolist() for row in found.rows([0, 6, 1])]
    wanted = [allowed(matcher(0)), allowed(matcher(0, 0)), allowed(matcher(0, 0, 6))]
    assert rows == wanted, f"b may not follow c, so there are three rows: {wanted}; yours: {rows}"
    assert found.states == matcher(0).states
