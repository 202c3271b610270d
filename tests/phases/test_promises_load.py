"""The promises of p13's second half: who got what was promised, the rate that can be promised, the right replica.

Each case is small enough to work out by hand.
"""

import pytest

from phases.p13_serving.load.goodput import Objective, goodput, met, tpot
from phases.p13_serving.load.knee import LateClient, Point, find, kept, passes
from phases.p13_serving.load.records import Record
from phases.p13_serving.load.router import Replica, choose, names
from tests.phases.conftest import of

# -- goodput -----------------------------------------------------------------------------------------------------------

OBJECTIVE = Objective(ttft=0.5, tpot=0.1)


@of("p13")
@pytest.mark.parametrize(
    ("record", "wanted", "why"),
    [
        (Record(0, 1, 3, 5), 0.5, "5 tokens have 4 gaps, in 2 s"),
        (Record(7, 8, 9, 2), 1, "2 tokens have one gap, of 1 s"),
        (Record(0, 1, 1, 1), None, "one token has no gap"),
        (Record(0, None, None, 0), None, "it has no token"),
        (Record(0, 1, None, 5), None, "its last token has not come"),
    ],
)
def test_the_pace_of_an_answer_is_its_mean_gap(phase, record, wanted, why):
    found = tpot(record)
    assert found == wanted, f"{why}: {wanted}; yours: {found}"


@of("p13")
@pytest.mark.parametrize(
    ("record", "wanted", "why"),
    [
        (Record(10, 10.25, 11.25, 11), True, "0.25 s and 0.1 s per token keep limits of 0.5 s and 0.1 s"),
        (Record(10, 10.5, 11.5, 11), True, "a limit of 0.5 s is kept by 0.5 s"),
        (Record(10, 10.75, 11, 11), False, "its first token took 0.75 s"),
        (Record(10, 10.25, 12.25, 11), False, "it took 0.2 s per token"),
        (Record(10, 10.25, 10.25, 1), True, "an answer of one token has no pace to judge"),
        (Record(10, 10.75, 10.75, 1), False, "an answer of one token must come in time, too"),
        (Record(10, 10.25, 10.75, 6, failed=True), False, "it broke off, however fast it was"),
        (Record(10, None, None, 0, failed=True), False, "it was refused"),
        (Record(10, None, None, 0), False, "it has no token yet"),
        (Record(10, 10.25, None, 3), False, "it was not done when the recording ended"),
    ],
)
def test_an_objective_is_met_by_a_whole_answer_within_both_limits(phase, record, wanted, why):
    found = met(record, OBJECTIVE)
    assert found is wanted, f"{why}: {wanted}; yours: {found}"


def good(at):
    return Record(at, at + 0.25, at + 1.25, 11)


@of("p13")
@pytest.mark.parametrize(
    ("records", "wanted", "why"),
    [
        ([good(10), good(12), good(13)], (0.75, 1.0), "3 good requests in 4 s"),
        ([good(9.9), good(10), good(14)], (0.25, 1.0), "of 9.9, 10 and 14 only 10 lies in [10, 14)"),
        ([good(13.9), good(9.5)], (0.25, 1.0), "due at 13.9, done at 15.15: a request counts where it was due"),
        ([good(10), Record(11, 13, 14, 11)], (0.25, 0.5), "one of two is good"),
        ([good(10), Record(11, None, None, 0)], (0.25, 0.5), "one of two has no answer yet, and counts as not good"),
        ([good(10), good(11), Record(12, None, None, 0, True), Record(13, 13.1, 13.2, 2, True)], (0.5, 0.5),
         "2 of 4 are good: failed requests were requests"),
        ([good(13), good(11), good(12)], (0.75, 1.0), "records come in any order: 3 in 4 s"),
        ([], (0.0, 0.0), "nothing was due"),
        ([Record(10, 12, 13, 11)], (0.0, 0.0), "none of one is good"),
    ],
)  # fmt: skip
def test_goodput_counts_good_requests_by_when_they_were_due(phase, records, wanted, why):
    found = goodput(records, OBJECTIVE, 10, 14)
    assert found == wanted, f"from 10 to 14 s, {why}: {wanted}; yours: {found}"


# -- the knee ----------------------------------------------------------------------------------------------------------


def points(*pairs):
    return [Point(rate, p99) for rate, p99 in pairs]


@of("p13")
@pytest.mark.parametrize(
    ("given", "wanted", "why"),
    [
        (points((1, 0.1), (2, 0.15), (4, 0.3)), 2, "4 fails, and 2 is the highest below it"),
        (points((1, 0.1), (2, 0.2)), 2, "a p99 of 0.2 s keeps a limit of 0.2 s"),
        (points((1, 0.1), (2, 0.3), (3, 0.19), (4, 0.5)), 1, "2 fails, so that 3 passes is luck"),
        (points((4, 0.3), (1, 0.1), (2, 0.15)), 2, "points come in any order"),
        (points((1, 0.3), (2, 0.1)), 0, "the lowest rate fails"),
        (points((2, 0.1), (2, 0.3), (1, 0.1)), 1, "2 passes once and fails once, so it cannot be promised"),
        ([], 0, "nothing was measured"),
        ([Point(1, 0.1), Point(2, 0.9, late=0.5), Point(3, 0.15)], 3, "at 2 the client was 0.5 s late: no failure"),
        ([Point(1, 0.1), Point(2, 0.1, late=0.03), Point(3, 0.4)], 1, "at 2 the client was 0.03 s late: no pass"),
        ([Point(1, 0.1), Point(2, 0.1, late=0.02)], 2, "0.02 s late is a tenth of the limit, which is allowed"),
    ],
)
def test_what_can_be_promised_lies_below_the_lowest_failure(phase, given, wanted, why):
    found = kept(given, 0.2)
    assert found == wanted, f"limit 0.2 s, {why}: {wanted}; yours: {found}"


ENOUGH = 200  # probes: no search here takes fifty


class Noisy:
    """A server that has a p99 of 0.2 s up to `knee`, and of 0.4 s above it.

    lies: the numbers of the probes that say the opposite. late: the numbers of those whose client was 1 s late.
    """

    def __init__(self, knee, lies=(), late=()):
        self.knee, self.lies, self.late = knee, lies, late
        self.asked = []

    def __call__(self, rate):
        self.asked.append(rate)
        number = len(self.asked)
        assert number <= ENOUGH, f"{ENOUGH} probes are more than enough; yours goes on, now at the rate {rate:.4g}"
        return Point(rate, 0.2 if (rate <= self.knee) != (number in self.lies) else 0.4, 1.0 * (number in self.late))


@of("p13")
@pytest.mark.parametrize(
    ("rate", "lies", "tries", "wanted", "asked"),
    [
        (4, (), 3, True, 2),
        (6, (), 3, False, 2),
        (4, (1,), 3, True, 3),
        (6, (2,), 3, False, 3),
        (4, (1, 2), 5, True, 5),
        (6, (), 1, False, 1),
    ],
)
def test_a_majority_of_probes_decides_and_no_probe_is_sent_in_vain(phase, rate, lies, tries, wanted, asked):
    server = Noisy(5, lies)
    found = passes(server, rate, 0.2, tries)
    told = f"probe {' and '.join(map(str, lies))} errs" if lies else "no probe errs"
    assert found is wanted, f"the knee is at 5, the rate {rate}, {told} of {tries}: {wanted}; yours: {found}"
    assert len(server.asked) == asked, f"{told}: {asked} of {tries} probes decide; yours sent {len(server.asked)}"


@of("p13")
@pytest.mark.parametrize("late", [1, 2])
def test_a_late_client_ends_the_probing(phase, late):
    try:
        found = passes(Noisy(5, late=(late,)), 4, 0.2, 3)
    except LateClient:
        return
    raise AssertionError(f"the client of probe {late} was 1 s late: LateClient; yours: {found}")


@of("p13")
@pytest.mark.parametrize(
    ("knee", "wanted", "why"),
    [
        (0.5, 0, "even 1 fails"),
        (100, 64, "even 64 passes"),
        (20, 16, "1 · 64 has its middle at 8, 8 · 64 at 22.6, 8 · 22.6 at 13.5, 13.5 · 22.6 at 17.4 …"),
        (8, 8, "8 itself still passes"),
    ],
)
def test_the_search_ends_next_to_the_knee(phase, knee, wanted, why):
    server = Noisy(knee)
    found = find(server, 0.2, 1, 64, precision=0.1)
    near = found == wanted if wanted in (0, 64) else found <= knee < 1.1 * found
    assert near, f"the knee is at {knee}, {why}: within 10 % below it; yours: {found:.4g}"
    assert found in server.asked or found == 0, f"the result must have been probed; yours: {found}"


@of("p13")
def test_the_search_takes_the_middle_of_a_ratio(phase):
    server = Noisy(20)
    find(server, 0.2, 1, 64, tries=1)
    found = [round(rate, 1) for rate in server.asked[:5]]
    assert found == [1, 64, 8, 22.6, 13.5], f"1, 64, then 8, 22.6 and 13.5; yours: {found}"
    assert len(server.asked) == 9, f"within 5 % after 9 probes; yours took {len(server.asked)}"
    server = Noisy(201)
    find(server, 0.2, 200, 220, tries=1)
    assert len(server.asked) == 3, f"from 200 to 220, 1 more probe is within 5 %; yours took {len(server.asked) - 2}"


@of("p13")
def test_the_search_ends_where_the_precision_is_reached(phase):
    server = Noisy(1.2)
    found = find(server, 0.2, 1, 1.5, precision=0.5, tries=1)
    assert (found, len(server.asked)) == (1, 2), (
        f"1.5 is within 50 % of 1: 1, after 2 probes; yours: {found}, after {len(server.asked)}"
    )


@of("p13")
def test_a_search_survives_a_probe_that_errs(phase):
    found = find(Noisy(20, lies=(1, 4, 7, 10)), 0.2, 1, 64)
    assert 19 < found <= 20, f"one probe of each three may err: just below 20; yours: {found:.4g}"


# -- the router --------------------------------------------------------------------------------------------------------


@of("p13")
def test_a_name_stands_for_its_block_and_for_everything_before(phase):
    first, second, other = names([1, 2, 3, 4], size=2), names([1, 2, 3, 5], size=2), names([9, 2, 3, 4], size=2)
    assert first == names([1, 2, 3, 4], size=2), "the same prompt has the same names"
    assert len(first) == 2, f"4 tokens are 2 blocks of 2; yours: {len(first)}"
    assert first[0] == second[0], "1 2 3 4 and 1 2 3 5 have the same first block"
    assert first[1] != second[1], "the blocks 3 4 and 3 5 differ; yours have one name"
    assert first[1] != other[1], "3 4 behind 1 2 is not 3 4 behind 9 2: keys depend on all tokens before; yours agree"
    assert first[0] != names([3, 4], size=2)[0] and len({*first}) == 2, "1 2 and 3 4 are different blocks"
    assert names([1, 23], size=2) != names([12, 3], size=2), "the tokens 1, 23 are not 12, 3; yours have one name"
    assert names([1, 2, 3, 4, 1, 2], size=2)[0] != names([1, 2, 3, 4, 1, 2], size=2)[2], "the third block is another"


@of("p13")
def test_only_full_blocks_have_names(phase):
    found = [len(names([7] * length, size=4)) for length in (0, 3, 4, 7, 8)]
    assert found == [0, 0, 1, 1, 2], f"0, 3, 4, 7 and 8 tokens in blocks of 4: [0, 0, 1, 1, 2]; yours: {found}"
    assert len(names([1] * 33)) == 2, f"33 tokens are 2 blocks of 16; yours: {len(names([1] * 33))}"


@of("p13")
def test_prompts_with_different_salts_share_nothing(phase):
    ann, ben = names([1, 2, 3, 4], "ann", 2), names([1, 2, 3, 4], "ben", 2)
    assert not set(ann) & set(ben), "Ann's and Ben's salts differ, so no block may have the same name"
    assert ann == names([1, 2, 3, 4], "ann", 2) != names([1, 2, 3, 4], size=2), "a salt is part of every name"


A, B, C, D, E = (bytes([number]) for number in range(5))


def replica(*known, room=9, inside=0):
    return Replica(room, inside, dict.fromkeys(known))


@of("p13")
@pytest.mark.parametrize(
    ("known", "wanted"), [((A, B, C), 3), ((A, B, E), 2), ((B, C), 0), ((A, C), 1), ((), 0), ((C, B, A, D), 3)]
)
def test_a_match_ends_at_the_first_block_that_is_missing(phase, known, wanted):
    found = replica(*known).matched([A, B, C])
    shown = "".join("ABCDE"[name[0]] for name in known)
    assert found == wanted, f"the replica has {shown or 'nothing'}, the prompt is ABC: {wanted} blocks; yours: {found}"


def letters(one):
    return "".join("ABCDE"[name[0]] for name in one.known)


@of("p13")
@pytest.mark.parametrize(
    ("room", "prompts", "wanted", "why"),
    [
        (9, ["AB"], "BA", "a prompt's end is older than its beginning"),
        (9, ["AB", "C"], "BAC", "newer prompts come last"),
        (9, ["AB", "C", "AB"], "CBA", "what is used again is new again"),
        (3, ["AB", "CD"], "ADC", "there is room for 3: the end of the oldest prompt goes, B"),
        (2, ["ABC"], "BA", "a prompt longer than the room keeps its beginning"),
        (3, ["AB", "AC", "AD"], "CDA", "A is in all three, so B is the oldest"),
        (3, ["ABC"], "CBA", "3 fit into 3"),
    ],
)
def test_a_replica_loses_what_was_unused_for_longest_ends_first(phase, room, prompts, wanted, why):
    one = replica(room=room)
    for prompt in prompts:
        one.take(["ABCDE".index(letter).to_bytes() for letter in prompt])
    found = letters(one)
    assert found == wanted, (
        f"after {', '.join(prompts)}: {why}: {wanted}, the oldest first; yours: {found or 'nothing'}"
    )


@of("p13")
def test_a_router_that_asks_for_a_match_makes_no_block_newer(phase):
    one = replica(A, B, C, room=3)
    one.matched([A])
    one.take([D])
    found = letters(one)
    assert found == "BCD", (
        f"of ABC, A is the oldest; to be asked for A is no use of it, so D takes its place: BCD; yours: {found}"
    )


@of("p13")
@pytest.mark.parametrize(
    ("replicas", "wanted", "why"),
    [
        ([replica(A), replica(A, B), replica()], 1, "the second knows two blocks, the first one"),
        ([replica(A, inside=0), replica(A, B, inside=4)], 1, "4 more inside is not more than 4"),
        ([replica(A, B, inside=3), replica(A, inside=2)], 0, "3 and 2 differ by 1, so prefixes decide"),
        ([replica(A, B, inside=9), replica(A, inside=7)], 0, "9 and 7 differ by 2, so prefixes decide"),
        ([replica(A, inside=0), replica(A, B, inside=5)], 0, "5 more inside is more than 4: the idlest"),
        ([replica(A, B, inside=3), replica(inside=8), replica(inside=2)], 2,
         "8 and 2 differ by 6: the idlest, though the first knows more and is far from the busiest"),
        ([replica(A, inside=3), replica(A, inside=1), replica(A, inside=2)], 1, "all know as much: the idlest"),
        ([replica(inside=2), replica(inside=1), replica(inside=1)], 1, "none knows anything: the first of the idlest"),
        ([replica(A, B), replica(A, B)], 0, "equal in all: the first"),
        ([replica(inside=7), replica(inside=1), replica(inside=1)], 1, "too uneven: the first of the idlest"),
        ([replica(A, B, C, inside=9)], 0, "there is only one"),
    ],
)  # fmt: skip
def test_the_longest_prefix_wins_unless_the_load_is_too_uneven(phase, replicas, wanted, why):
    found = choose(replicas, [A, B, C], 4)
    assert found == wanted, f"bound 4, {why}: replica {wanted}; yours: {found}"


@of("p13")
def test_a_prompt_without_a_full_block_goes_to_the_idlest(phase):
    found = choose([replica(A, inside=2), replica(inside=1)], [], 4)
    assert found == 1, f"nothing can match, and the second has less to do: replica 1; yours: {found}"
