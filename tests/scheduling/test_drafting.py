"""How many drafts a step verifies: as many as pay, by what was measured."""

import re
from collections import deque
from itertools import product

import numpy as np
import pytest

from gradus.engine.plan import REJECTED, UNDRAFTED, Decodes
from gradus.scheduling.drafting import CHOICES, HOLD, LOOKED, MOST_ROWS, PROBE, DraftControl


class Device:
    """A device whose steps take `cost(sequences, drafts)` seconds, and on which drafts agree with `chance`.

    catch_up: seconds more, where the step before had no drafts. lag: steps planned before a step's drafts are known.
    """

    def __init__(self, control: DraftControl, cost, sequences: int = 1, catch_up: float = 0.0, lag: int = 0) -> None:
        self.control, self.cost, self.slots = control, cost, np.arange(sequences)
        self.catch_up, self.drafted = catch_up, False
        self.planned = deque([0] * lag)
        self.draw = np.random.default_rng(0)
        self.seconds, self.tokens = 0.0, 0
        self.of_each = np.zeros(sequences, np.int64)  # tokens, by sequence
        for slot in self.slots:
            control.begin(slot)

    def step(self, chance) -> int:
        """Returns how many drafts were verified. chance: of each slot."""
        self.planned.append(self.control.choose(self.slots, 10_000))
        drafts = self.planned.popleft()
        count = len(self.slots)
        agrees = self.draw.random((count, drafts)) < np.broadcast_to(np.asarray(chance)[..., None], (count, drafts))
        stood = np.concatenate([np.ones((count, 1), bool), agrees.cumprod(axis=1, dtype=bool)], axis=1)
        usual = not self.catch_up or not drafts or self.drafted
        seconds = self.cost(count, drafts) + (0.0 if usual else self.catch_up)
        self.drafted = drafts > 0
        self.control.learn(Decodes(slots=self.slots), np.where(stood, 7, REJECTED), [])
        self.control.took(count, drafts, seconds, usual)
        self.seconds, self.tokens = self.seconds + seconds, self.tokens + int(stood.sum())
        self.of_each += stood.sum(axis=1)
        return drafts

    def run(self, chance, steps: int) -> list[int]:
        return [self.step(chance) for _ in range(steps)]


def adaptive(slots: int = 1, most: int = 8) -> DraftControl:
    return DraftControl(most, slots, lag=1, adaptive=True)


def begin_anew(device: Device) -> None:
    """All sequences are new ones."""
    for slot in device.slots:
        device.control.begin(slot)


def memory_bound(count: int, drafts: int) -> float:
    return 1e-3 * (1 + 0.01 * count * drafts)


def compute_bound(count: int, drafts: int) -> float:
    return 1e-3 * count * (1 + drafts)


def test_drafts_that_agree_are_verified_as_many_as_there_may_be():
    device = Device(adaptive(), memory_bound)
    assert set(device.run(0.98, 200)[-50:]) - {0} == {8}, "but for looks"


def test_drafts_that_never_agree_are_given_up_and_cost_next_to_nothing():
    device = Device(adaptive(), memory_bound)
    device.run(0.0, 2000)
    assert device.tokens / device.seconds > 0.99 / 1e-3
    assert sum(drafts > 0 for drafts in device.run(0.0, 1000)) <= 4


def test_where_a_row_costs_a_step_only_sure_drafts_pay():
    device = Device(adaptive(4), compute_bound, 4)
    device.run(0.7, 3000)
    assert device.tokens / device.seconds > 0.97 / 1e-3


def test_a_probe_finds_out_when_drafts_pay_again():
    device = Device(adaptive(), memory_bound)
    device.run(0.0, 500)
    again = device.run(1.0, 600)
    first = next(number for number, drafts in enumerate(again) if drafts)
    assert again[first + 20 :].count(0) < 12, "but for looks"
    assert max(again[first : first + 100]) == 8


def test_probes_of_a_slow_drafter_take_a_small_share_of_the_time():
    device = Device(adaptive(), lambda count, drafts: 1e-3 * (1 + 8 * drafts))
    device.run(0.5, 500)  # it has seen how slow each number is
    device.seconds, device.tokens = 0.0, 0
    assert any(device.run(0.5, 20_000)), "it goes on looking"
    assert device.tokens / device.seconds > 0.97 / 1e-3


@pytest.mark.parametrize("draft", [0.9, 1.4])
def test_a_draft_model_that_brings_nothing_and_has_to_catch_up_costs_little(draft):
    """Each time that it drafts again it reads what came since: steps that say nothing of the next ones, and cost."""
    device = Device(adaptive(most=7), lambda count, drafts: 1e-3 * (1 + draft * drafts), catch_up=3e-3)
    for _ in range(20):
        device.control.begin(0)
        device.run(0.9, 150)
    assert device.tokens / device.seconds > 0.97 / 1e-3


def test_the_first_drafts_of_all_are_no_more_than_a_probes():
    begun = Device(adaptive(most=7), memory_bound).run(0.9, 40)
    assert next(filter(None, begun)) <= PROBE, "their time is a guess"
    assert begun[-1] == 7


def test_drafts_that_have_paid_for_long_survive_a_streak_of_bad_luck():
    device = Device(adaptive(most=7), lambda count, drafts: 1e-3 * (1 + 0.5 * drafts))
    device.run(0.9, 500)
    device.control.begin(0)
    device.run(0.0, 8)
    assert device.run(0.9, 200).count(0) < 30


@pytest.mark.parametrize("slow", [1, 3])
def test_a_slow_beginning_does_not_make_drafts_look_good(slow):
    """Its first steps, which have no drafts, take five times as long as all others."""
    seconds = iter([5e-3] * slow)
    device = Device(adaptive(), lambda count, drafts: next(seconds, 1e-3 * (1 + 0.4 * drafts)))
    device.run(0.16, 1000)
    device.seconds, device.tokens = 0.0, 0
    device.run(0.16, 2000)
    assert device.tokens / device.seconds > 0.97 / 1e-3


def test_it_notices_that_steps_without_drafts_have_become_faster():
    """While a neighbor is busy every step takes long, and drafts pay; then only those with drafts do."""
    device = Device(adaptive(), lambda count, drafts: 3e-3 * (1 + 0.02 * drafts))
    assert set(device.run(0.5, 300)[-16:]) & {3, 7, 8}
    device.cost = lambda count, drafts: 1e-3 * (1 + (drafts > 0) * (2 + 0.02 * drafts))
    device.run(0.5, 5000)
    device.seconds, device.tokens = 0.0, 0
    device.run(0.5, 2000)
    assert device.tokens / device.seconds > 0.97 / 1e-3


def test_requests_of_another_kind_soon_have_steps_without_drafts_measured_anew():
    """Long texts that were copied, and then short ones: what a step took before would make poor drafts look good."""
    times = {0: 0.52, 1: 0.64, 2: 0.76, 3: 0.84, 7: 1.0}
    device = Device(adaptive(8, most=7), lambda count, drafts: times[drafts], 8)
    assert min({*device.run(0.9, 800)[-50:]} - {0}) > 1
    times |= {0: 0.42, 1: 0.53, 2: 0.6, 3: 0.68, 7: 0.76}
    begin_anew(device)
    begun = device.run(0.15, 300)
    assert sum(drafts > 0 for drafts in begun[100:]) < 20, begun


def test_looks_at_steps_without_drafts_cost_next_to_nothing_where_drafts_pay():
    device = Device(adaptive(), memory_bound)
    device.run(0.98, 1000)
    assert device.run(0.98, 2560).count(0) == 10 * LOOKED


def test_more_drafts_are_looked_at_where_a_line_through_what_is_known_would_bar_them():
    """The first draft makes a step half as long again, and the next six together add less: few drafts say little of the
    time of many."""
    device = Device(adaptive(8, most=7), lambda count, drafts: 1e-3 * (1 + 0.5 * (drafts > 0) + 0.08 * drafts), 8)
    device.run(0.1, 2000)  # what is expected of the next ones is little
    begin_anew(device)
    device.run(0.9, 60)
    assert device.run(0.9, 60).count(7) > 50


def test_one_draft_is_found_to_pay_where_two_are_too_dear():
    """Eight sequences: sixteen rows are next to free there, and the next eight double a step."""
    device = Device(adaptive(8, most=4), lambda count, drafts: 1e-3 * (1 + 0.1 * drafts + (drafts > 1)), 8)
    device.run(0.4, 400)
    device.seconds, device.tokens = 0.0, 0
    device.run(0.4, 1000)
    assert device.tokens / device.seconds > 0.97 * 8 * 1.4 / 1.1e-3


def test_two_drafts_are_found_to_pay_where_one_is_as_dear():
    """Eight sequences on a CPU: sixteen rows take twice as long as eight, and the next eight next to nothing."""
    device = Device(adaptive(8, most=4), lambda count, drafts: 1e-3 * (1 + (drafts > 0) + 0.05 * drafts), 8)
    device.run(0.1, 400)
    device.run(0.93, 1000)
    assert min({*device.run(0.93, 200)} - {0}) >= 2, "but for looks"


def test_a_decision_against_drafts_holds_while_they_are_in_debt(monkeypatch):
    """A step on a GPU is as long as the host takes to plan the next one, or nearly: most steps must not work it out."""
    device = Device(adaptive(8), lambda count, drafts: 1e-3 * (1 + 9 * drafts), 8)
    device.run(0.1, 100)
    decided, costs = [], DraftControl._costs
    monkeypatch.setattr(DraftControl, "_costs", lambda *given: decided.append(given) or costs(*given))
    assert not any(device.run(0.1, 400)), "still in debt"
    assert 0 < len(decided) <= 400 / HOLD


def test_the_step_behind_first_tokens_takes_the_last_decision_and_the_next_one_decides():
    device = Device(adaptive(4), memory_bound, 4)
    device.run(0.9, 200)
    control, decided = device.control, []
    control._decide = lambda drafts, why: decided.append(drafts) or drafts
    last = control._now
    for _ in range(3):  # newcomers before each of six steps
        control.begin(0)
        assert (control.choose(device.slots, 10_000), decided) == (last, [])
        control.begin(1)
        assert (control.choose(device.slots, 10_000), len(decided)) == (decided[-1], 1)
        decided.clear()
    control.begin(2)
    assert control.choose(device.slots, 7) == 1, "as far as there is room"


def test_one_sequence_that_copies_does_not_slow_the_others_down():
    """15 of 16 say nothing that could be drafted, and a row costs what it costs: it is the sum that counts."""
    chance = np.array([1.0] + [0.0] * 15)
    device = Device(adaptive(16), lambda count, drafts: 1e-3 * (1 + 0.05 * count * drafts), 16)
    device.run(chance, 2000)
    assert device.tokens / device.seconds > 0.98 * 16 / 1e-3


def test_a_crowd_whose_drafts_do_not_stand_has_drafts_in_few_steps():
    """A gap between tokens is longer where drafts are verified: in at most one step in forty, of 160 of each crowd."""
    device = Device(adaptive(8, most=7), lambda count, drafts: 1e-3 * (1 + 0.25 * drafts), 8, lag=1)
    device.run(0.1, 500)
    drafted = 0
    for _ in range(25):
        begin_anew(device)
        drafted += sum(drafts > 0 for drafts in device.run(0.1, 160))
    assert 25 <= drafted <= 100, "each crowd is tried"


def test_new_requests_are_tried_once_and_go_on_when_it_is_known_what_that_came_to():
    device = Device(adaptive(8, most=7), lambda count, drafts: 1e-3 * (1 + 0.25 * drafts), 8, lag=1)
    device.run(0.1, 2000)
    begin_anew(device)
    begun = device.run(0.95, 60)
    first = next(number for number, drafts in enumerate(begun) if drafts)
    assert begun[first : first + 2] == [1, 0] and all(begun[first + 2 : first + 8])
    assert min(begun[-8:]) >= 2


def test_a_newcomer_does_not_interrupt_drafts_that_pay():
    device = Device(adaptive(8, most=7), memory_bound, 8, lag=1)
    device.run(0.9, 500)
    for slot in range(8):
        device.control.begin(slot)
        assert device.run(0.9, 60).count(0) <= 2 * LOOKED, "but for looks"


COPIES, OPEN = 0.92, 0.2  # how probable it is that a draft stands, if those before it do


def mixed(sequences: int, share: float) -> np.ndarray:
    """Chances of a batch of which such a share copies; at least one sequence does, and one does not."""
    copying = max(1, min(sequences - 1, round(sequences * share)))
    return np.array([COPIES] * copying + [OPEN] * (sequences - copying))


def best_rate(cost, chances: np.ndarray, choices: tuple[int, ...] = CHOICES) -> float:
    """Tokens per second of the best number of drafts for all, by arithmetic."""
    rates = [
        (chances[:, None] ** np.arange(drafts + 1)).sum() / cost(len(chances), drafts)
        for drafts in choices
        if not drafts or len(chances) * (1 + drafts) <= MOST_ROWS
    ]
    return max(rates)


def by_rows(share: float):
    """A device on which a row more takes such a share of what a step takes in any case."""
    return lambda count, drafts: 1e-3 * (1 + share * count * (1 + drafts))


def settled(chances: np.ndarray, cost) -> Device:
    """What 2,000 steps bring once the control knows the batch."""
    device = Device(adaptive(len(chances)), cost, len(chances))
    device.run(chances, 1000)
    device.seconds, device.tokens, device.of_each = 0.0, 0, np.zeros_like(device.of_each)
    device.run(chances, 2000)
    return device


@pytest.mark.parametrize("row", [0.002, 0.008, 0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("sequences", [2, 8, 32, 64])
@pytest.mark.parametrize("share", [1 / 8, 1 / 2, 7 / 8])
def test_of_a_mixed_batch_the_number_with_the_most_tokens_per_second_is_chosen(share, sequences, row):
    chances, cost = mixed(sequences, share), by_rows(row)
    device = settled(chances, cost)
    assert device.tokens / device.seconds > 0.93 * best_rate(cost, chances), "up to the margin, none may be chosen"


@pytest.mark.parametrize("row", [0.002, 0.008, 0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("sequences", [2, 8, 32, 64])
def test_a_number_for_each_kind_would_bring_two_fifths_more_at_most(sequences, row):
    """Half of the batch copies. Beside a number for each kind, where a step is as long as the rows that are drafted."""
    chances = mixed(sequences, 1 / 2)
    half = len(chances) // 2

    def rate(copying: int, others: int) -> float:
        tokens = sum(half * (chance ** np.arange(k + 1)).sum() for chance, k in ((COPIES, copying), (OPEN, others)))
        return tokens / (1e-3 * (1 + row * half * (2 + copying + others)))

    apart = max(rate(*pair) for pair in product(CHOICES, repeat=2) if half * (2 + sum(pair)) <= MOST_ROWS)
    device = settled(chances, by_rows(row))
    assert device.tokens / device.seconds > apart / 1.42


@pytest.mark.parametrize("row", [0.002, 0.008, 0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("sequences", [2, 8, 32, 64])
def test_the_half_that_does_not_copy_waits_for_longer_steps_but_not_twice_as_long(sequences, row):
    cost, half = by_rows(row), sequences // 2
    device = settled(mixed(sequences, 1 / 2), cost)
    alone = half / cost(sequences, 0)  # tokens per second of half of the sequences, without drafts
    assert device.of_each[half:].sum() / device.seconds > 0.55 * alone
    assert device.of_each[:half].sum() / device.seconds > 0.95 * alone, "those that copy never lose"


def test_a_number_that_was_asked_for_is_used_as_far_as_there_is_room():
    control = DraftControl(5, 4, lag=1, adaptive=False, rows=12)
    slots = np.arange(4)
    assert control.choose(slots[:1], 100) == 5
    assert control.choose(slots[:1], 3) == 3
    assert control.choose(slots, 100) == 2  # of 12 rows


def test_it_says_why_there_are_so_many():
    control = DraftControl(7, 4, lag=1, adaptive=True)
    assert control.stats().why == "nothing has run yet"
    control.choose(np.arange(4), 100)
    assert control.stats().why == "the time of a step without drafts is not known yet"

    device = Device(control, memory_bound, 4)
    device.run(0.9, 50)
    assert (control.stats().drafts, control.stats().why[4:]) == (7, " times the tokens per second of no drafts")
    assert float(control.stats().why[:4]) > 3
    assert control.choose(device.slots, 11) == 2, "a step with less room"

    whys = set()
    for _ in range(1500):  # first it makes good for drafts that were verified too long
        device.step(0.0)
        whys.add((control.stats().drafts, control.stats().why))
    assert {(1, "a probe"), (PROBE, "a probe")} <= whys
    drafts, why = control.stats().drafts, control.stats().why
    assert drafts == 0 and re.fullmatch(r"\d drafts? would bring (0\.9\d|1\.0[0-5]) times the tokens per second", why)

    fixed = DraftControl(5, 4, lag=1, adaptive=False, rows=12)
    fixed.choose(np.arange(2), 100)
    assert fixed.stats().why == "as asked for"
    fixed.choose(np.arange(4), 100)
    assert fixed.stats().why == "as a step has room for"


def test_what_was_drafted_and_accepted_is_counted_by_position():
    control = DraftControl(3, 2, lag=1, adaptive=False)
    control.choose(np.arange(2), 100)
    tokens = np.array([[5, 6, REJECTED, UNDRAFTED], [5, REJECTED, REJECTED, REJECTED]])
    control.learn(Decodes(slots=np.arange(2)), tokens, [])
    told = control.stats()
    assert (told.drafted, told.accepted) == ((2, 2, 1), (1, 0, 0))
    assert told.tokens_per_step == 1.5 and told.acceptance == (0.5, 0.0, 0.0)


def test_asking_what_drafts_came_to_changes_no_choice():
    """A server asks at any time. Learning from several steps at once is what keeps a step cheap."""
    asked, left_alone = Device(adaptive(), memory_bound), Device(adaptive(), memory_bound)
    for _ in range(300):
        before = len(asked.control._observed)
        asked.control.stats()
        assert len(asked.control._observed) == before
        assert asked.run(0.6, 1) == left_alone.run(0.6, 1)
    assert asked.control.stats() == left_alone.control.stats()


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_ten_thousand_requests_do_not_wear_it_out(chance):
    """Slots are used again and again; what is expected of drafts follows the newest, and does not decay."""
    device = Device(adaptive(), memory_bound)
    device.run(chance, 2000)
    before = device.tokens / device.seconds
    for _ in range(10_000):
        device.control.begin(0)
        device.step(chance)
    device.seconds = device.tokens = 0
    device.run(chance, 2000)
    assert device.tokens / device.seconds > 0.95 * before


def test_one_slow_step_does_not_bar_drafts_for_good():
    """The first step of each number of drafts takes fifty times as long, as where something is compiled."""
    seen = set()

    def cost(count: int, drafts: int) -> float:
        first = drafts not in seen
        seen.add(drafts)
        return memory_bound(count, drafts) * (50 if first and drafts else 1)

    device = Device(adaptive(), cost)
    device.run(1.0, 3000)
    assert device.run(1.0, 300).count(8) > 290
