"""Which drafts a step verifies: as many as pay, of the sequences whose drafts stand, at nobody's expense."""

import inspect
import re
from collections import deque
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from gradus.engine.plan import NO_DRAFTS, REJECTED, UNDRAFTED, Decodes
from gradus.scheduling import draft_gains, draft_shapes, drafting, hindsight, step_times
from gradus.scheduling.draft_shapes import MOST_ROWS, MOST_SEQUENCES, DraftShape, DraftShapes, batch_sizes
from gradus.scheduling.drafting import HOLD, LOSS, DraftControl
from gradus.scheduling.hindsight import IN_A_ROW, Hindsight
from gradus.scheduling.step_times import STALE, StepTimes
from tests.pairwise import each_once, first, pairwise

COPIES, OPEN = 0.92, 0.2  # how probable it is that a draft stands, if those before it do


class Judge(Hindsight):
    """Finds a guess in each step for a `found` share of the sequences' tokens, right with a `chance` each."""

    def __init__(self, chance, found) -> None:
        super().__init__()
        self.chance, self.found = np.asarray(chance, float), np.asarray(found, float)
        self.draw, self.counts = np.random.default_rng(3), np.zeros((4, len(self.chance)), np.int64)
        self.runs = np.zeros(len(self.chance), np.int64)

    def forget(self, slot: int) -> None:
        self.counts[:, slot] = self.runs[slot] = 0

    def judge(self, decodes: Decodes, tokens, ended) -> None:
        without = decodes.drafts == 0
        found = without & (self.draw.random(len(without)) < self.found)
        right = found & (self.draw.random(len(without)) < self.chance)
        self.counts += [without, found, found, right]
        self.runs[without] = np.where(right, self.runs + 1, 0)[without]
        begun = without & (self.runs == IN_A_ROW)
        self.stirred |= bool(begun.any())
        self.counts[:2, begun] = np.minimum(self.counts[:2, begun], [[2 * IN_A_ROW], [IN_A_ROW]])

    def take(self, slots):
        self.stirred, taken = False, self.counts[:, slots]
        self.counts = np.zeros_like(self.counts)
        return taken


class Device:
    """A device whose steps take `cost(sequences, rows, drafts)` seconds: rows of drafts, as padded, and the most of one
    sequence. Drafts stand with a `chance` each.

    catch_up: seconds more, where the step before had no drafts. lag: steps planned before a step's drafts are known.
    """

    def __init__(self, control: DraftControl, cost, sequences: int = 1, catch_up: float = 0.0, lag: int = 1) -> None:
        self.control, self.cost, self.slots = control, cost, np.arange(sequences)
        self.catch_up, self.drafted, self.lag = catch_up, False, lag
        self.under_way: deque = deque()
        self.draw = np.random.default_rng(0)
        self.forget()
        begin_anew(self)

    def forget(self) -> None:
        """Count from now on."""
        self.seconds, self.of_each = 0.0, np.zeros(len(self.slots), np.int64)  # tokens, by sequence

    def step(self, chance) -> int:
        """Plan a step, and finish the one that was planned `lag` steps ago. Returns how many drafts are planned."""
        planned = self.control.choose(self.slots, 10_000)
        drafts = planned.copy() if len(planned) else np.zeros(len(self.slots), np.int64)
        self.under_way.append((drafts, chance))
        if len(self.under_way) > self.lag:
            self._finish(*self.under_way.popleft())
        return int(drafts.sum())

    def _finish(self, drafts, chance) -> None:
        count, rows = len(drafts), int(drafts.sum())
        most = int(drafts.max()) if rows else 0
        tokens, accepted = np.full((count, 1 + most), 7), 0
        if rows:
            chances = np.broadcast_to(np.asarray(chance, float), count)[:, None]
            there = np.arange(1, most + 1) <= drafts[:, None]
            stood = ((self.draw.random((count, most)) < chances) & there).cumprod(axis=1, dtype=bool)
            tokens[:, 1:] = np.where(stood, 7, np.where(there, REJECTED, UNDRAFTED))
            accepted = stood.sum(axis=1)
        usual = not self.catch_up or not rows or self.drafted
        shape = self.control.shapes.fitting(count, most, rows) if rows else DraftShape(0, 0)
        seconds = self.cost(count, shape.rows, shape.drafts) + (0.0 if usual else self.catch_up)
        self.drafted = rows > 0
        self.control.learn(Decodes(slots=self.slots, drafts=drafts), tokens, [], seconds, usual)
        self.seconds += seconds
        self.of_each += 1 + accepted

    def run(self, chance, steps: int) -> list[int]:
        return [self.step(chance) for _ in range(steps)]

    def gains(self) -> np.ndarray:
        """Tokens per second of each sequence, as a multiple of those without drafts."""
        return self.of_each / self.seconds * self.cost(len(self.slots), 0, 0)


def adaptive(slots: int = 1, most: int = 7, **settings) -> DraftControl:
    return DraftControl(DraftShapes(most, slots, **settings), slots, lag=1, adaptive=True)


def fixed(most: int, slots: int, rows: int = MOST_ROWS) -> DraftControl:
    return DraftControl(DraftShapes(most, slots, rows=rows), slots, lag=1, adaptive=False)


def begin_anew(device: Device) -> None:
    """All sequences are new ones."""
    for slot in device.slots.tolist():
        device.control.begin(slot)


def by_rows(share: float, passes: float = 0.0):
    """A device on which a row takes such a share of what a step takes in any case, and a drafter's pass another."""
    return lambda count, rows, drafts: 1e-3 * (1 + share * (count + rows) + passes * drafts)


def settled(chances, cost, **settings) -> Device:
    """What 2,000 steps give once the control knows the batch."""
    device = Device(adaptive(len(chances), **settings), cost, len(chances))
    device.run(chances, 1000)
    device.forget()
    device.run(chances, 2000)
    return device


def mixed(sequences: int, share: float) -> np.ndarray:
    """Chances of a batch of which such a share copies."""
    copying = round(sequences * share)
    return np.array([COPIES] * copying + [OPEN] * (sequences - copying))


# -- nobody pays -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "sequences", "row"), pairwise([0, 1 / 8, 1 / 2, 1], [2, 8, 64], [0.002, 0.02, 0.1]))
def test_no_sequence_of_any_batch_gets_slower(share, sequences, row):
    device = Device(adaptive(sequences), by_rows(row), sequences)
    device.run(mixed(sequences, share), 1000)
    assert device.gains().min() > 1 - LOSS - 0.02


@pytest.mark.parametrize("row", [0.008, 0.1])
@pytest.mark.parametrize("share", [0, 1 / 2, 1])
def test_nor_where_each_draft_is_a_pass_of_the_drafter(share, row):
    assert settled(mixed(8, share), by_rows(row, passes=0.1), passes=True).gains().min() > 1 - LOSS - 0.02


def test_of_requests_that_are_all_short_none_gets_slower():
    """Each begins with what others were like, and ends before its own drafts are known well."""
    device = Device(adaptive(8), by_rows(0.02), 8)
    for _ in range(60):
        begin_anew(device)
        device.run(OPEN, 40)
    assert device.gains().min() > 0.97


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_nor_on_a_machine_whose_steps_vary(noise):
    draw = np.random.default_rng(1)
    cost = by_rows(0.02)
    device = Device(adaptive(8), lambda *step: cost(*step) * (1 + noise * abs(draw.standard_normal())), 8)
    device.run(mixed(8, 1 / 4), 3000)
    plain = 1e-3 * (1 + 0.02 * 8) * (1 + noise * 0.8)  # the mean of |N(0, 1)| is 0.8
    assert (device.of_each / device.seconds * plain).min() > 0.95


MEASURED = {0: 1.0, 7: 1.165, 14: 1.664, 28: 1.859, 56: 1.864}
"""Steps of eight sequences on an H100 (SmolLM2): rows of drafts, and the time as a multiple of a step without."""


def of_requests(chances, before: float, hindsight: Judge | None = None) -> np.ndarray:
    """Eight requests of 160 tokens, after others whose drafts stood with the chance `before`: how fast each was served,
    as a multiple of its rate without drafts."""

    def cost(count: int, rows: int, drafts: int) -> float:
        return 417e-6 * MEASURED[min(each for each in MEASURED if each >= rows)]

    control = DraftControl(DraftShapes(7, 8), 8, lag=1, adaptive=True, hindsight=hindsight)
    device = Device(control, cost, 8)
    for shape in device.control.shapes.of(8):
        device.control.times.expect(8, shape, cost(8, shape.rows, 7) / cost(8, 0, 0))
    for _ in range(10):
        begin_anew(device)
        device.run(before, 160)
    begin_anew(device)
    device.forget()
    ended = np.zeros(8)
    while not ended.all():
        device.step(chances)
        ended[(device.of_each >= 160) & (ended == 0)] = device.seconds
    return 160 * cost(8, 0, 0) / ended


@pytest.mark.parametrize("before", [OPEN, COPIES])
@pytest.mark.parametrize("share", [0, 1 / 4])
def test_short_requests_lose_little_however_wrong_the_expectation(share, before):
    assert of_requests(mixed(8, share), before).min() > 1 - LOSS - 0.01


@pytest.mark.parametrize("before", [OPEN, COPIES])
def test_short_requests_that_copy_gain_however_wrong_the_expectation(before):
    assert of_requests(mixed(8, 1), before).min() > 1.5


@pytest.mark.parametrize("before", [OPEN, COPIES])
def test_with_hindsight_those_that_do_not_copy_pay_nothing_and_those_that_do_gain_at_once(before):
    others = Judge([OPEN] * 8, [0.3] * 8)
    assert of_requests([OPEN] * 8, before, others).min() == pytest.approx(1), "not one step has drafts"
    chances = mixed(8, 1 / 4)
    gains = of_requests(chances, before, Judge(chances, [1, 1, *[0.3] * 6]))
    assert gains[:2].min() > 1.1 and gains[2:].min() > 1 - LOSS - 0.005
    assert of_requests(mixed(8, 1), before, Judge(mixed(8, 1), [1] * 8)).min() > 1.5


def test_with_hindsight_nothing_is_chosen_anew_until_a_sequence_begins_to_copy(monkeypatch):
    judge = Judge([OPEN] * 4, [0.1] * 4)
    device = Device(DraftControl(DraftShapes(7, 4), 4, lag=1, adaptive=True, hindsight=judge), by_rows(0.02), 4)
    device.run(OPEN, 100)
    chosen, chose = [], DraftControl._chosen
    monkeypatch.setattr(DraftControl, "_chosen", lambda *given: chosen.append(1) or chose(*given))
    assert not any(device.run(OPEN, 160))
    assert len(chosen) <= 6, "a few more where guesses were right by chance"
    judge.chance[:], judge.found[:] = 1.0, 1.0
    assert any(device.run(1.0, IN_A_ROW + 2)), "at once, not when the last choice ends"


def test_with_hindsight_a_choice_for_want_of_room_is_made_anew():
    """Drafts of one sequence would not pay for the step, and those of all have no room until a prompt has been read."""
    device = Device(
        DraftControl(DraftShapes(7, 4), 4, lag=1, adaptive=True, hindsight=Judge([1.0] * 4, [1.0] * 4)),
        lambda count, rows, drafts: 1e-3 * (1 + 0.9 * (rows > 0)),
        4,
    )
    control, slots = device.control, device.slots
    for _ in range(3):
        control.learn(Decodes(slots=slots, drafts=np.zeros(4, np.int64)), np.full((4, 1), 7), [], 1e-3)
        control.choose(slots, 0)
    control.times.took(4, DraftShape(7, 7), 1.9e-3)
    control.times.took(4, DraftShape(7, 7), 1.9e-3)
    control._ahead[:] = 100
    chosen = [control.choose(slots, 3 if step < HOLD else 10_000).sum() for step in range(2 * HOLD + 1)]
    assert not any(chosen[:HOLD]) and chosen[-1]


# -- and those that copy gain ------------------------------------------------------------------------------------------


def test_two_that_copy_among_six_that_do_not_gain_and_the_six_lose_nothing():
    gains = settled(mixed(8, 1 / 4), by_rows(0.008)).gains()
    assert gains[:2].min() > 1.8 and gains[2:].min() > 0.97


@pytest.mark.parametrize(("row", "least"), [(0.002, 5), (0.02, 2.7), (0.1, 1.3)])
def test_eight_that_copy_gain_what_their_rows_allow(row, least):
    assert settled(mixed(8, 1), by_rows(row)).gains().min() > least


def test_of_many_that_copy_each_gains_though_not_all_drafts_have_rows():
    """64 sequences and 112 rows: the likeliest drafts would be those of some, and no one else could afford them."""
    gains = settled(mixed(64, 1), by_rows(0.008)).gains()
    assert gains.mean() > 1.5 and gains.min() > 1.3


def test_one_that_is_far_behind_holds_up_no_others():
    """Eight that copy, on a device whose steps with all their drafts take four times as long. One has had bad luck."""
    device = Device(adaptive(8), by_rows(0.1), 8)
    device.run(COPIES, 300)
    device.control._ahead[:] = [-8, *[0] * 7]
    device.forget()
    device.run(COPIES, 60)
    assert device.gains().mean() > 1.4 and device.gains().min() > 1.1


def best(chance: float, count: int, cost, shapes: DraftShapes) -> float:
    """The most that uniform sequences can gain, by arithmetic."""
    plain = cost(count, 0, 0)
    found = [1.0]
    for drafts in range(1, shapes.most + 1):
        shape = shapes.fitting(count, drafts, count * drafts)
        if shape is not None:
            found.append((chance ** np.arange(drafts + 1)).sum() * plain / cost(count, shape.rows, shape.drafts))
    return max(found)


@pytest.mark.parametrize(("chance", "row"), each_once([0.0, 0.3, 0.6, 0.95], [0.002, 0.02, 0.05]))
def test_one_sequence_alone_gains_nearly_all_that_it_can(chance, row):
    device = settled(np.array([chance]), by_rows(row))
    assert device.gains()[0] > 0.93 * best(chance, 1, by_rows(row), device.control.shapes)


def test_the_likeliest_drafts_are_verified_however_many_rows_there_are():
    device = settled(np.array([0.95, 0.7, 0.3, 0.3]), by_rows(0.02))
    gains = device.gains()
    assert gains[0] > gains[1] > gains[2:].max() and gains[0] > 3


# -- trials ------------------------------------------------------------------------------------------------------------


def test_drafts_that_never_stand_are_tried_ever_more_rarely():
    device = Device(adaptive(), by_rows(0.01))
    device.run(0.0, 3000)
    assert sum(drafts > 0 for drafts in device.run(0.0, 4 * STALE)) <= 5
    assert device.gains()[0] > 0.99


def test_a_trial_finds_out_when_drafts_stand_again():
    device = Device(adaptive(), by_rows(0.01))
    device.run(0.0, 500)
    again = device.run(1.0, STALE + 60)
    begun = next(number for number, drafts in enumerate(again) if drafts)
    assert again[begun] == 1 and max(again[begun : begun + 40]) == 7


def test_a_trial_waits_until_everyone_can_afford_it():
    """A step with drafts takes nine times as long: a trial is worth 800 steps of what a sequence may lose."""
    device = Device(adaptive(), lambda count, rows, drafts: 1e-3 * (1 + 8 * (rows > 0)))
    device.run(0.1, 10_000)
    assert device.gains()[0] > 0.97


def test_a_drafter_that_has_to_catch_up_first_costs_little():
    device = Device(adaptive(passes=True), by_rows(0.01, passes=0.9), catch_up=3e-3)
    for _ in range(20):
        device.control.begin(0)
        device.run(0.6, 150)
    assert device.gains()[0] > 0.96


def test_new_requests_are_expected_to_be_like_the_ones_before_them():
    copying = Device(adaptive(8), by_rows(0.01), 8)
    copying.run(COPIES, 300)
    begin_anew(copying)
    assert max(copying.run(COPIES, 6)) > 8, "drafted for at once"
    others = Device(adaptive(8), by_rows(0.05), 8)
    others.run(0.05, 2000)
    begin_anew(others)
    assert not any(others.run(0.05, HOLD - 1)), "not before a trial"


@pytest.mark.parametrize(("chance", "requests"), first([(0.5, 2_000), (0.5, 10_000), (0.0, 10_000), (1.0, 10_000)]))
def test_thousands_of_requests_do_not_wear_it_out(chance, requests):
    device = Device(adaptive(), by_rows(0.01))
    device.run(chance, 2000)
    device.forget()
    device.run(chance, 500)
    before = device.gains()[0]
    for _ in range(requests):
        device.control.begin(0)
        device.step(chance)
    device.run(chance, 1000)
    device.forget()
    device.run(chance, 2000)
    assert device.gains()[0] > 0.95 * before


def test_drafts_that_are_sure_are_verified_whatever_drafts_came_to():
    sure = np.array([0, 3, 9])
    control = DraftControl(DraftShapes(7, 3, rows=20), 3, lag=1, adaptive=True, sure=lambda slots: sure[slots])
    assert control.choose(np.arange(3), 10_000).tolist() == [0, 3, 7]
    assert control.choose(np.arange(3), 4).tolist() == [0, 2, 2], "as many as there is room for"
    assert control.choose(np.arange(1), 10_000) is NO_DRAFTS


# -- what steps take ---------------------------------------------------------------------------------------------------


def test_one_slow_step_does_not_bar_drafts_for_good():
    """The first step of each shape takes fifty times as long, as where something is compiled."""
    seen = set()

    def cost(count: int, rows: int, drafts: int) -> float:
        first = rows not in seen
        seen.add(rows)
        return by_rows(0.01)(count, rows, drafts) * (50 if first and rows else 1)

    device = Device(adaptive(), cost)
    device.run(1.0, 4000)
    assert device.run(1.0, 300).count(7) > 290


def test_a_slow_beginning_does_not_make_drafts_look_good():
    seconds = iter([5e-3] * 3)
    cost = by_rows(0.4)
    device = Device(adaptive(), lambda *step: next(seconds, cost(*step)))
    device.run(0.16, 1000)
    device.forget()
    device.run(0.16, 2000)
    assert device.gains()[0] > 0.97


def test_a_step_without_drafts_is_timed_again_now_and_then():
    """Steps without drafts become twice as fast, and the others hardly: that is learned from one without."""
    device = Device(adaptive(), by_rows(0.05))
    assert min(device.run(0.6, 400)[-50:]) > 0
    device.cost = lambda count, rows, drafts: 1e-3 * (0.5 + 0.7 * (rows > 0) + 0.05 * rows)
    device.run(0.6, 2 * STALE)
    device.forget()
    device.run(0.6, 2000)
    assert device.gains()[0] > 0.97


def test_what_a_shape_takes_is_a_multiple_known_before_the_first_request():
    times, shape = StepTimes(), DraftShape(7, 14)
    times.expect(8, shape, 1.25)
    assert times.ratio(8, shape) == 1.25 and not times.known(8)
    for _ in range(2):
        times.took_plain(8, 1e-3)
    assert times.known(8) and times.took(8, shape, 1.5e-3) == 1.5
    assert times.ratio(8, shape) == 1.25, "the first step may have set something up"
    times.took(8, shape, 1.4e-3)
    assert 1.25 < times.ratio(8, shape) <= 1.5
    assert times.ratio(8, DraftShape(7, 28)) > times.ratio(8, shape), "a larger one takes longer, as far as is known"


def test_a_first_step_without_drafts_may_come_after_many_with_some():
    times, shape = StepTimes(), DraftShape(7, 14)
    for _ in range(STALE):
        times.took(8, shape, 2e-3)
    times.took_plain(8, 1e-3)
    assert times.took(8, shape, 1.5e-3) == 1.5


def test_a_shape_that_was_slow_for_a_while_is_tried_again():
    """Two steps were slow, and none follows for long: the shape looks cheap again, and the next time counts alone."""
    times, shape = StepTimes(), DraftShape(7, 14)
    for _ in range(2):
        times.took_plain(8, 1e-3)
        times.took(8, shape, 50e-3)
    assert times.ratios(8, [shape])[shape] == 50
    for _ in range(50 * STALE):
        times.took_plain(8, 1e-3)
    assert times.ratios(8, [shape])[shape] < 2
    times.took(8, shape, 1.5e-3)
    assert times.ratios(8, [shape])[shape] == 1.5


def test_a_shape_that_was_not_timed_is_judged_by_the_nearest_that_was():
    times = StepTimes()
    for _ in range(2):
        times.took_plain(8, 1e-3)
    assert times.ratio(8, DraftShape(7, 28)) == 1.0, "nothing is known"
    for _ in range(2):
        times.took(8, DraftShape(7, 28), 3e-3)
    assert times.ratio(8, DraftShape(7, 28)) == 3.0
    assert times.ratio(8, DraftShape(7, 14)) == 2.0, "half the rows, half of what they add"
    assert times.ratio(8, DraftShape(7, 56)) == 4.0, "twice the rows, half as much again"


# -- shapes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("most", [1, 4, 7])
def test_there_is_a_shape_for_all_that_may_be_chosen_and_hardly_one_has_more_than_twice_its_rows(most, passes):
    shapes = DraftShapes(most, 256, passes=passes)
    for size in [size for size in batch_sizes(256) if size <= MOST_SEQUENCES]:
        for rows in range(1, min(size * most, MOST_ROWS - size, max(each.rows for each in shapes.of(size))) + 1):
            fitting = shapes.fitting(size, 1, rows)
            assert fitting is not None and rows <= fitting.rows
            assert passes or fitting.rows <= 2 * max(rows, 2) + 1
    assert not shapes.of(80) and shapes.fitting(65, 1, 1) is None
    assert all(size + each.rows <= MOST_ROWS for size in batch_sizes(64) for each in shapes.of(size))


def test_steps_that_run_only_drafts_found_may_have_all_the_rows_there_are():
    """16 sequences and 64 rows: three drafts of each."""
    shapes = DraftShapes(7, 16).unpadded(64)
    assert max(each.rows for each in shapes.of(16)) == 48
    assert max(each.rows for each in shapes.of(4)) == 28


def test_with_too_many_sequences_or_no_room_there_are_no_drafts():
    control = adaptive(100)
    assert control.choose(np.arange(65), 10_000) is NO_DRAFTS
    assert control.choose(np.arange(4), 0) is NO_DRAFTS
    assert control.stats().why == "a step has no room for drafts"


def test_a_number_that_was_asked_for_is_used_as_far_as_there_is_room():
    control, slots = fixed(5, 4, rows=12), np.arange(4)
    assert control.choose(slots[:1], 100).tolist() == [5]
    assert control.choose(slots[:1], 3).tolist() == [3]
    assert control.choose(slots, 100).tolist() == [2] * 4  # of 12 rows


# -- what it says ------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "design" / "speculation.md"
PACKING = {"PAIR"}  # decides nothing


def numbers(module) -> dict[str, tuple[float, ...]]:
    """The module's own constants that are numbers, or plain tuples of them."""
    names = re.findall(r"^([A-Z_]+)(?:, ([A-Z_]+))? = ", inspect.getsource(module), re.MULTILINE)
    found = {name: getattr(module, name) for pair in names for name in pair if name}
    return {name: tuple(np.atleast_1d(value)) for name, value in found.items() if type(value) in (int, float, tuple)}


def test_the_page_lists_every_number_that_steers_a_choice():
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([\d., /]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {name: tuple(float(Fraction(each.strip())) for each in value.split(",")) for name, value in rows}
    modules = draft_gains, draft_shapes, drafting, hindsight, step_times
    found = {name: value for module in modules for name, value in numbers(module).items() if name not in PACKING}
    assert listed == found


def test_it_says_why_there_are_so_many():
    control = adaptive(4)
    assert control.stats().why == "nothing has run yet"
    control.choose(np.arange(4), 100)
    assert control.stats().why == "the time of a step without drafts is not known yet"

    device = Device(control, by_rows(0.002), 4)
    device.run(0.9, 60)
    assert (control.stats().drafts, control.stats().why[4:]) == (7, " times the tokens per second of no drafts")
    assert float(control.stats().why[:4]) > 3

    whys = set()
    for _ in range(3000):
        device.step(0.0)
        whys.add((control.stats().drafts, control.stats().why))
    assert (1, "a trial") in whys
    assert control.stats().drafts == 0 and control.stats().why.startswith("drafts would make ")

    some = Device(adaptive(8), by_rows(0.05), 8)
    whys = {why for _ in range(600) if (some.step(mixed(8, 1 / 8)), why := some.control.stats().why)}
    assert "drafts of some would slow the others down" in whys

    control = fixed(5, 4, rows=12)
    control.choose(np.arange(1), 100)
    assert control.stats().why == "as asked for"
    control.choose(np.arange(4), 100)
    assert control.stats().why == "as a step has room for"


def test_what_was_drafted_and_accepted_is_counted_by_position():
    control = fixed(3, 2)
    drafts = control.choose(np.arange(2), 100)
    tokens = np.array([[5, 6, REJECTED, UNDRAFTED], [5, REJECTED, REJECTED, REJECTED]])
    control.learn(Decodes(slots=np.arange(2), drafts=drafts), tokens, [])
    stats = control.stats()
    assert (stats.drafted, stats.accepted) == ((2, 2, 1), (1, 0, 0))
    assert stats.tokens_per_step == 1.5 and stats.acceptance == (0.5, 0.0, 0.0)


def test_asking_what_drafts_came_to_changes_no_choice():
    asked, left_alone = Device(adaptive(), by_rows(0.01)), Device(adaptive(), by_rows(0.01))
    for _ in range(300):
        asked.control.stats()
        assert asked.run(0.6, 1) == left_alone.run(0.6, 1)
    assert asked.control.stats() == left_alone.control.stats()


def test_a_choice_lasts_while_the_same_sequences_decode(monkeypatch):
    """A step on a GPU is as long as the host takes to plan the next one, or nearly: most steps must not work it out."""
    device = Device(adaptive(8), by_rows(0.3), 8)
    device.run(0.1, 300)
    worked_out, chosen = [], DraftControl._chosen
    monkeypatch.setattr(DraftControl, "_chosen", lambda *given: worked_out.append(given) or chosen(*given))
    device.run(0.1, 400)
    assert 0 < len(worked_out) <= 80
