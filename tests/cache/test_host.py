"""Pages in host memory: however late copies are, a sequence reads what it would have computed; and the LRU order holds
across tiers."""

import random
from collections import OrderedDict
from itertools import takewhile
from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gradus.cache.disk.names import Names
from gradus.cache.host.files import MISSING, WHOLE, Reading
from gradus.cache.host.slots import NO_PLACE, Slots
from gradus.cache.host.tier import HostTier
from gradus.cache.idle import IdlePages
from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from tests.cache.late import Device, LateCopies, LateMemory, LateSequence

WHICH = st.integers(0, 1000)
TOKENS = st.lists(st.integers(0, 1), max_size=9)
SALTS = st.sampled_from([None, None, "a", "b"])
CUT = st.integers(0, 40)
COUNTS = st.lists(st.integers(1, 16), max_size=3)
QUICKLY = settings(max_examples=60, stateful_step_count=50, derandomize=True, database=None, deadline=None,
                   phases=[Phase.generate])  # fmt: skip


class Machine:
    """A cache, a late device, and host memory behind it."""

    def __init__(self, pages, size, windows, places, ahead, at_once=2) -> None:
        self.device = Device()
        self.memory = LateMemory(self.device, size, windows)
        self.copies = LateCopies(self.device, self.memory, at_once)
        self.names = Names({}, b"secret", size)
        self.tier = HostTier(self.names, self.copies, places, pages, size, ahead, worth=0)
        self.cache = PagedCache(pages, size, windows, PrefixIndex(), self.tier)

    def warm(self, tokens, salt, draw: random.Random | None = None, times: int = 1000) -> None:
        """Load what a sequence could hit, as the scheduler would. draw: lets the device do something now and then."""
        if not self.cache.loading:
            self.cache.load(tokens, salt, self.cache.available)
        while self.cache.loading and times > 0:
            times -= 1
            if draw is None:
                self.device.drain()
            else:
                self.device.turn(draw)
            self.cache.settle()

    def stored(self, id, tokens) -> LateSequence:
        """A sequence whose prompt one step has stored, which is committed."""
        sequence = LateSequence(self.cache, self.memory, id, list(tokens))
        sequence.launch(len(tokens))
        sequence.commit()
        return sequence

    def computed(self, tokens, salt=None) -> int:
        """Run one sequence to its prompt's end, each step waited for. Returns the positions that it hit."""
        self.cache.settle()
        self.warm(tokens, salt)
        sequence = LateSequence(self.cache, self.memory, "s", list(tokens), salt)
        while sequence.stored < len(tokens):
            self.cache.settle()
            assert sequence.launch(5)
            sequence.commit()
        sequence.release()
        self.cache.settle()
        self.device.drain()
        self.cache.settle()
        self.cache.check()
        return sequence.hit


# -- any mixture of sequences and of orders in which the device works --------------------------------------------------


class LateMachine(RuleBasedStateMachine):
    """The tier against the memory, which sees what steps read, whenever they run."""

    WINDOWS: ClassVar = [(None,), (None,), (None, 3), (None, None, 5, 2)]
    hits: ClassVar = [0]

    @initialize(
        pages=st.integers(6, 14),
        size=st.integers(1, 3),
        windows=st.sampled_from(WINDOWS),
        places=st.integers(4, 60),
        ahead=st.sampled_from([2, 5, 100]),
        at_once=st.integers(1, 5),
    )
    def start(self, pages, size, windows, places, ahead, at_once):
        self.machine = Machine(pages * len(windows), size, windows, places, ahead, at_once)
        self.cache, self.device = self.machine.cache, self.machine.device
        self.live: list[LateSequence] = []
        self.texts: list[tuple[list[int], str | None]] = [([], None)]
        self.count = 0

    @rule(like=WHICH, cut=CUT, tail=TOKENS, salt=SALTS, times=st.integers(0, 30), seed=WHICH,
          leaves=st.integers(0, 3), poisoned=st.integers(0, 9), committed=st.booleans())  # fmt: skip
    def visit(self, like, cut, tail, salt, times, seed, leaves, poisoned, committed):
        """A sequence comes and runs to its prompt's end; others leave before and after, for its room and its pages."""
        while len(self.live) > leaves:
            self.leave(0, poisoned, committed)
        self.admit(like, cut, tail, salt, times, seed, [5, 5, 5, 5])
        self.work(seed, times)

    @rule(like=WHICH, cut=CUT, tail=TOKENS, salt=SALTS, times=st.integers(0, 30), seed=WHICH, counts=COUNTS)
    def admit(self, like, cut, tail, salt, times, seed, counts):
        text, before = self.texts[like % len(self.texts)]
        tokens, salt = [*text[:cut], *tail, 1], before if cut % 4 else salt
        self.cache.settle()
        self.machine.warm(tokens, salt, random.Random(seed), times)
        if not self.cache.loading:
            self.count += 1
            sequence = LateSequence(self.cache, self.machine.memory, self.count, tokens, salt)
            self.live.append(sequence)
            self.texts.append((tokens, salt))  # the text grows with the answer
            for count in counts:
                self.step(sequence, count)

    @rule(which=WHICH, counts=COUNTS, behind=st.integers(0, 2))
    def run(self, which, counts, behind):
        for count in counts:
            if self.live:
                self.step(self.live[which % len(self.live)], count, behind)

    def step(self, sequence, count, behind=1):
        self.cache.settle()
        sequence.launch(count)
        while len(sequence.under_way) > behind:
            sequence.commit()

    @rule(which=WHICH, poisoned=st.integers(0, 6), committed=st.booleans())
    def leave(self, which, poisoned, committed):
        """A sequence ends; perhaps with steps under way, which still write to its pages."""
        if not self.live:
            return
        sequence = self.live.pop(which % len(self.live))
        while committed and sequence.under_way:
            sequence.commit()
        if poisoned := poisoned < 2 and sequence.launch(3, poisoned=True):
            self.device.finish(sequence.under_way[-1][0])  # that is how it is noticed
            # a chunk has no logits, so its pages are published before its numbers are seen
            self.cache.publish(sequence.id, sequence.tokens, sequence.stored)
        sequence.release(poisoned)

    @rule(seed=WHICH, times=st.integers(1, 20))
    def work(self, seed, times):
        draw = random.Random(seed)
        for _ in range(times):
            self.device.turn(draw)

    @rule()
    def settle(self):
        self.cache.settle()

    @invariant()
    def balanced(self):
        if hasattr(self, "machine"):
            self.cache.check()

    def teardown(self):
        if hasattr(self, "machine"):
            self.device.drain()
            self.cache.settle()
            self.cache.check()
            self.hits[0] += self.machine.tier.hit_positions


def run(how: settings | None = None) -> int:
    """Run the machine. Returns how many positions came back from host memory."""
    machine = type("Machine", (LateMachine,), {"hits": [0]})
    run_state_machine_as_test(machine, settings=how)
    return machine.hits[0]


def test_however_late_copies_are_a_sequence_reads_what_it_would_have_computed():
    assert run(QUICKLY) > 100, "pages did come back"


@pytest.mark.stress
def test_however_late_copies_are_in_other_examples():
    run()


def no_fence(self, copy, *, steps=True):
    """Steps and copies back write to a page that a copy out still reads, or read one that is not filled."""


def never_in_use(self, keys, enter=Slots.enter):
    """A place may be given away while a copy is under way."""
    found = enter(self, keys)
    for place in found:
        if place != NO_PLACE:
            self._uses[place] = 0
    return found


def salt_forgotten(self, salt, now, trail=Names.trail):
    return trail(self, None, now)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (LateCopies, "fence", no_fence),
        (Slots, "enter", never_in_use),
        (Names, "trail", salt_forgotten),
    ],
)
def test_a_broken_tier_is_noticed(monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(BaseException):  # noqa: B017 a query's read, or the books
        run(settings(QUICKLY, max_examples=600))  # ends with the first example that notices


# -- the order of use, across tiers ------------------------------------------------------------------------------------


class OrderMachine(RuleBasedStateMachine):
    """The tier against a list of names: the least recently used first, and no longer than host memory.

    Every copy is done before the next call, and all idle pages are copied: so a sequence must hit the longest prefix of
    which each page is in the pool or in the list.
    """

    @initialize(pages=st.integers(4, 16), size=st.integers(1, 3), places=st.integers(1, 30))
    def start(self, pages, size, places):
        self.machine = Machine(pages, size, (None,), places, ahead=3 * pages)
        self.cache, self.size, self.places = self.machine.cache, size, places
        self.order: OrderedDict[bytes, None] = OrderedDict()
        self.live: list[LateSequence] = []
        self.held: dict[object, list[bytes]] = {}  # by sequence: the keys of its indexed pages
        self.texts: list[tuple[list[int], str | None]] = [([], None)]
        self.count = 0

    def names(self, tokens, salt, end) -> list[bytes]:
        trail = self.machine.names.trail(salt, 0)
        self.machine.names.extend(trail, tokens, end)
        return self.machine.names.keys(trail, 0, end, 0)

    def used(self, names):
        """A path was used: its beginning last."""
        for name in reversed(names):
            if name in self.order:
                self.order.move_to_end(name)

    def idle(self, names):
        """A path lost its last holder, and its pages are copied: its end first, as far as there are places."""
        new = set()
        alive = {name for held in self.held.values() for name in held}
        for name in reversed(names):
            if name in alive:
                continue
            if name in self.order:
                self.order.move_to_end(name)
                continue
            if len(self.order) == self.places:
                for copied in [*takewhile(new.__contains__, self.order)]:
                    self.order.move_to_end(copied)  # still under way, so it counts as used
                if next(iter(self.order)) in new:
                    continue
                self.order.popitem(last=False)
            self.order[name] = None
            new.add(name)

    def settle(self):
        self.cache.settle()
        self.machine.device.drain()
        self.cache.settle()

    @rule(like=WHICH, cut=CUT, tail=TOKENS, salt=SALTS, counts=COUNTS)
    def admit(self, like, cut, tail, salt, counts):
        text, before = self.texts[like % len(self.texts)]
        tokens, salt = [*text[:cut], *tail, 1], before if cut % 4 else salt
        longest = (len(tokens) - 1) // self.size
        pool = self.cache.known(tokens, salt)[0] // self.size
        names, hit = self.names(tokens, salt, longest), pool
        while hit < longest and names[hit] in self.order:
            hit += 1
        cache = self.cache
        idle = sum(page in cache.pool.idle for page in cache.index.match(tokens, salt)[1][0])  # held while it loads
        wanted = min(hit, pool + cache.available)
        wanted = wanted if wanted - pool <= cache.available - idle else pool
        self.machine.warm(tokens, salt)
        if wanted > pool:
            self.used(names[pool:wanted])
            self.idle(names[:wanted])
        self.settle()
        self.count += 1
        sequence = LateSequence(self.cache, self.machine.memory, self.count, tokens, salt)
        assert sequence.hit == wanted * self.size
        self.held[sequence.id] = names[:wanted]
        self.used(names[:wanted])
        self.live.append(sequence)
        self.texts.append((tokens, salt))
        for count in counts:
            self.step(sequence, count)

    @rule(which=WHICH, counts=COUNTS)
    def run(self, which, counts):
        for count in counts:
            if self.live:
                self.step(self.live[which % len(self.live)], count)

    def step(self, sequence, count):
        self.settle()
        if sequence.launch(count):
            sequence.commit()
            before = len(self.held[sequence.id])
            names = self.names(sequence.tokens, sequence.salt, min(sequence.stored, len(sequence.tokens)) // self.size)
            self.held[sequence.id] = names
            self.used(names[before:])
        self.settle()

    @rule(which=WHICH)
    def leave(self, which):
        if self.live:
            sequence = self.live.pop(which % len(self.live))
            sequence.release()
            self.idle(self.held.pop(sequence.id))
            self.settle()

    @invariant()
    def same_order(self):
        if hasattr(self, "machine"):
            self.cache.check()
            assert self.machine.tier.slots.by_use() == list(self.order)


def test_the_least_recently_used_page_goes_across_tiers():
    run_state_machine_as_test(OrderMachine, settings=settings(QUICKLY, max_examples=60))


def test_a_load_that_is_refused_is_no_use_of_the_pages_before_it():
    """Found by the machine: the load's hit was held for a moment, so its page was copied once more, as if used."""
    machine = OrderMachine()
    machine.start(size=3, pages=6, places=1)
    machine.admit(like=0, cut=2, tail=[1, 0, 1], salt=None, counts=[4, 13, 1])
    machine.leave(0)
    machine.admit(like=0, cut=0, tail=[0], salt="a", counts=[])
    machine.admit(like=0, cut=8, tail=[0, 0], salt=None, counts=[11, 12, 14])
    machine.run(0, [5, 10, 5])
    machine.admit(like=1, cut=28, tail=[0, 1], salt="a", counts=[16, 3, 5])
    machine.same_order()
    machine.admit(like=1, cut=30, tail=[1, 1, 0], salt=None, counts=[])
    machine.same_order()


def in_order_of_arrival(self, keys):
    """Uses leave no trace."""


def test_an_order_that_forgets_uses_is_noticed(monkeypatch):
    monkeypatch.setattr(Slots, "touch", in_order_of_arrival)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(OrderMachine, settings=QUICKLY)


# -- one thing at a time -----------------------------------------------------------------------------------------------

TEXT = [*range(20)]


def test_what_the_pool_gave_up_comes_back():
    machine = Machine(8, 4, (None,), places=20, ahead=8)
    assert machine.computed(TEXT) == 0
    for other in (50, 60):
        assert machine.computed([other, *TEXT]) == 0
    assert machine.cache.known(TEXT) == (0, 16)
    assert machine.computed([*TEXT[:11], 77, 78]) == 8, "as far as it is the same"
    assert machine.computed(TEXT) == 16
    usage = machine.cache.usage()
    assert usage.host.hit_positions == 16 and usage.host.lost == 0 and usage.evictions > 0
    assert usage.host.pages == usage.host.copied_pages <= 20 and usage.disk is None


class Counting:
    """A hash that counts how often it is begun."""

    def __init__(self, hashing) -> None:
        self.hashing, self.count = hashing, 0

    def copy(self):
        self.count += 1
        return self.hashing.copy()


def test_a_pages_key_is_computed_once():
    machine = Machine(16, 4, (None,), places=20, ahead=8)
    hashing = machine.names._hash = Counting(machine.names._hash)
    assert machine.computed(TEXT) == 0
    assert hashing.count == 2 + 1 + 5, "its salt's twice, the first page's when it is looked up, and five pages'"
    hashing.count = 0
    assert machine.computed([*TEXT[:18], 7, 7, 7, 7]) == 16
    assert hashing.count == 1 + 1, "a lookup behind the hit, and the page there"


def test_sequences_that_are_not_worth_it_are_neither_named_nor_copied():
    machine = Machine(8, 4, (None,), places=20, ahead=8)
    machine.tier._worth = 20
    machine.computed(TEXT[:18])
    machine.computed([50, *TEXT[:17]])
    machine.computed([60, *TEXT[:17]])
    usage = machine.cache.usage()
    assert usage.evictions and not usage.host.copied_pages and not usage.host.lost
    machine.computed([60, *TEXT])  # continues one, and now all its pages are named
    machine.computed([70, *TEXT])
    assert machine.computed([60, *TEXT]) == 20


def test_pages_are_copied_only_once_the_free_ones_run_short():
    machine = Machine(30, 4, (None,), places=60, ahead=10)
    for first in range(4):
        machine.computed([first, *TEXT])
    assert machine.cache.usage().free == 10 and machine.cache.usage().host.copied_pages == 0
    machine.computed([5, *TEXT])
    assert machine.cache.usage().host.copied_pages > 0


def test_a_page_is_taken_without_a_wait_once_its_copy_is_done():
    machine = Machine(8, 4, (None,), places=20, ahead=8)
    fenced = []
    machine.copies.fence = lambda copy, steps=True: fenced.append(copy)
    machine.computed(TEXT)
    machine.computed([50, *TEXT])
    assert machine.cache.evictions and not fenced


def test_pages_that_are_not_copied_in_time_are_lost_and_computed_again():
    machine = Machine(8, 4, (None,), places=20, ahead=1)
    sequence = machine.stored("a", TEXT)
    sequence.release()
    other = LateSequence(machine.cache, machine.memory, "b", [50, *TEXT])
    assert other.launch(21)
    assert machine.cache.usage().host.lost > 0
    other.commit()
    other.release()
    assert machine.computed(TEXT) < 16


def test_copies_that_make_room_for_a_load_do_not_take_its_places():
    """Its session is the one that was away longest, so its pages would be the next to go."""
    machine = Machine(5, 4, (None,), places=9, ahead=1)
    for text in (TEXT, [50, *TEXT[:16]]):
        machine.computed(text)
        machine.tier.keep(list(machine.cache.pool.idle))
        machine.device.drain()
        machine.cache.settle()
        machine.cache.forget()
    assert len(machine.tier.slots) == 9
    machine.computed([60, *TEXT[:19]])  # fills the pool, and is not copied yet
    assert machine.computed(TEXT) == 16


def test_a_load_without_room_counts_as_no_refusal():
    machine = Machine(5, 4, (None,), places=9, ahead=5)
    machine.computed(TEXT)
    machine.cache.forget()
    before = machine.tier.slots.by_use()
    runs = LateSequence(machine.cache, machine.memory, "runs", [9, 9, 9, 9, 9])
    assert runs.launch(5)
    machine.cache.load(TEXT, None, 5)
    assert not machine.cache.loading and machine.cache.refusals == 0 and machine.tier.slots.by_use() == before


def test_a_wiped_page_that_a_load_has_filled_is_not_wiped_again():
    machine = Machine(7, 4, (None,), places=20, ahead=8)
    machine.computed(TEXT)
    machine.computed([50, *TEXT])
    sequence = LateSequence(machine.cache, machine.memory, "p", [70, *TEXT])
    sequence.launch(21, poisoned=True)
    sequence.release(poisoned=True)  # its pages are to be wiped by the next step
    assert machine.computed(TEXT) == 16


def test_a_load_gives_way_to_a_sequence_that_runs():
    machine = Machine(8, 4, (None,), places=20, ahead=8, at_once=1)
    machine.computed(TEXT)
    machine.computed([50, *TEXT])
    machine.cache.forget()
    runs = LateSequence(machine.cache, machine.memory, "runs", [9])
    assert runs.launch(1)
    machine.cache.load(TEXT, None, 6)
    assert machine.cache.loading
    while runs.stored < 28:
        assert runs.launch(1), "it finds room, as if nothing came back"
    assert not machine.cache.loading
    machine.device.drain()
    machine.cache.check()


@pytest.mark.parametrize("discards", [True, False])
def test_pages_of_a_poisoned_sequence_leave_host_memory(monkeypatch, discards):
    """A chunk's pages are published before a number in them turns out not finite."""
    if not discards:
        monkeypatch.setattr(HostTier, "discard", lambda self, trail, tables, pages: None)
    machine = Machine(16, 4, (None,), places=20, ahead=16)
    sequence = LateSequence(machine.cache, machine.memory, "p", list(TEXT))
    sequence.launch(20, poisoned=True)
    machine.device.drain()
    machine.cache.publish("p", sequence.tokens, 20)
    machine.tier.keep(machine.cache.residents["p"].tables[0][:3])  # with files, they are copied when published
    assert len(machine.tier.slots) == 3
    sequence.release(poisoned=True)
    machine.device.drain()
    machine.cache.settle()
    machine.cache.check()
    if discards:
        assert len(machine.tier.slots) == 0 and machine.computed(TEXT) == 0
    else:
        with pytest.raises(AssertionError):
            machine.computed(TEXT)


def not_after_out(self, after):
    """A copy back does not wait until its place is filled."""
    self.device.wait(self.device.back, self.device.record(self.device.steps))


def not_after_steps(self, after):
    """A copy back does not wait for the steps of the pages' last owners."""
    if after is not None:
        self.device.wait(self.device.back, after.landed)


@pytest.mark.parametrize("broken", [None, not_after_steps])
def test_a_page_is_filled_after_the_steps_that_still_write_to_it(monkeypatch, broken):
    """A sequence ends with a step under way, and a load takes its page."""
    if broken is not None:
        monkeypatch.setattr(LateCopies, "open", broken)
    machine = Machine(8, 4, (None,), places=20, ahead=8, at_once=8)
    machine.computed(TEXT)
    machine.cache.forget()
    ends = LateSequence(machine.cache, machine.memory, "ends", [9, 9, 9])
    assert ends.launch(3)
    ends.release()
    machine.cache.load(TEXT, None, 8)
    machine.device.finish(machine.tier._load.flights[-1].copy.landed)
    if broken is not None:
        with pytest.raises(AssertionError):
            machine.computed(TEXT)
        return
    assert machine.computed(TEXT) == 16


@pytest.mark.parametrize("waits", [True, False])
def test_a_page_is_filled_after_rows_of_a_step_were_run_again(waits):
    """A sequence ends with a step under way, and a load takes its page before a row of that step is run again."""
    machine = Machine(8, 4, (None,), places=20, ahead=8, at_once=8)
    machine.computed(TEXT)
    machine.cache.forget()
    ends = LateSequence(machine.cache, machine.memory, "ends", [9, 9, 9])
    assert ends.launch(3)
    tables = [list(table) for table in machine.cache.residents["ends"].tables]
    ends.release()
    machine.tier._repeats = lambda: waits
    machine.cache.load(TEXT, None, 8)
    machine.cache.settle()
    assert len(machine.tier._load.flights) == (0 if waits else 1)
    machine.device.drain()
    machine.memory.write(tables, ends.tokens, None, 2, 3)  # the row again
    machine.tier._repeats = lambda: False
    if waits:
        assert machine.computed(TEXT) == 16
    else:
        with pytest.raises(AssertionError):
            machine.computed(TEXT)


@pytest.mark.parametrize("broken", [None, not_after_out])
def test_a_place_is_copied_back_after_it_was_filled(monkeypatch, broken):
    """A page comes back while its copy out has left the pool and not arrived."""
    if broken is not None:
        monkeypatch.setattr(LateCopies, "open", broken)
    machine = Machine(8, 4, (None,), places=20, ahead=8, at_once=8)
    sequence = machine.stored("a", TEXT)
    sequence.release()
    machine.cache.settle()
    machine.cache.forget()
    machine.cache.load(TEXT, None, 8)
    back = machine.tier._load.flights[-1].copy.landed
    if broken is not None:
        with pytest.raises(KeyError):  # nothing is in that place
            machine.device.finish(back)
        return
    machine.device.finish(back)
    machine.cache.settle()
    assert machine.computed(TEXT) == 16


class Unread:
    """Files that have every page, and never read one to its end."""

    hit_positions = queued = 0

    def __contains__(self, name):
        return True

    def touch(self, used):
        """Nothing has an order here."""

    def read(self, keys, places):
        return Reading(keys, places)

    def written(self):
        return []


class Written:
    """Files that have no page, and note what would be written: each place, and what is in it by now."""

    hit_positions = queued = 0

    def __init__(self, copies: LateCopies) -> None:
        self.copies, self.found = copies, []

    def __contains__(self, key):
        return False

    def wants(self, key):
        return True

    def write(self, key, place, order):
        self.found.append(list(self.copies.places[place]))  # KeyError: nothing is in that place

    def touch(self, used):
        """Nothing has an order here."""

    def written(self):
        return []

    def close(self):
        """There are no threads."""


def test_what_is_on_its_way_to_files_gets_there_at_the_end():
    machine = Machine(8, 4, (None,), places=20, ahead=8)
    files = machine.tier._files = Written(machine.copies)
    sequence = machine.stored("last", TEXT)
    sequence.release()
    machine.device.drain()
    assert machine.tier._out and not files.found, "no step comes that would notice its copies' arrival"
    machine.tier.close()
    assert len(files.found) == 5


def test_a_path_that_is_copied_for_files_loses_its_end_first_too():
    machine = Machine(12, 4, (None,), places=20, ahead=1)
    files = machine.tier._files = Written(machine.copies)
    machine.stored("a", TEXT)
    keys = [machine.tier._keys[page] for page in machine.cache.residents["a"].tables[0][:5]]
    assert machine.tier.slots.by_use() == keys[::-1]
    machine.device.drain()
    machine.cache.settle()
    places = [machine.tier.slots.place(key) for key in keys]
    assert files.found == [machine.copies.places[place] for place in places], "written from its beginning on"


def test_a_file_gets_a_place_only_once_its_page_is_there():
    """A page leaves the pool while its copy out is under way, and another sequence computes the same one."""
    machine = Machine(12, 4, (None,), places=20, ahead=12)
    late = LateSequence(machine.cache, machine.memory, "late", list(TEXT))
    first = machine.stored("first", TEXT)
    first.release()
    machine.cache.settle()  # its pages are copied out, some time
    machine.cache.forget()
    files = machine.tier._files = Written(machine.copies)
    late.launch(20)
    late.commit()
    assert len(machine.copies.places) < 5, "not all copies have arrived"
    machine.device.drain()
    machine.cache.settle()
    late.release()
    for number in range(2):
        assert machine.computed([*TEXT, number]) == 20
    assert len(files.found) >= 5 and all(None not in cells for cells in files.found)
    machine.cache.check()


def test_a_load_that_ends_early_leaves_no_page_to_a_step_that_is_still_copied_out():
    machine = Machine(8, 4, (None,), places=20, ahead=8)
    sequence = machine.stored("a", TEXT)
    sequence.release()
    machine.cache.settle()  # its pages are copied out, some time
    machine.cache.forget()
    machine.tier._files = Unread()
    other = [50, *TEXT]
    machine.cache.load(other, None, 8)
    assert machine.cache.loading and machine.tier._load.launched == 0
    leaving = {flight.copy for flight in machine.tier._out}
    assert leaving
    fenced = []
    machine.copies.fence = lambda copy, steps=True: fenced.append((copy, steps))
    arrival = machine.cache.arrival
    machine.cache._stop_loading(arrival)
    assert len(fenced) == 1 and fenced[0][0] in leaving and fenced[0][1]
    machine.tier.settle()
    assert sum(machine.tier.slots._uses) > 0, "places that are still read into are nobody else's"
    machine.tier._files = None
    machine.cache.check()


class ReadMeanwhile(bytearray):
    """States of pages that a thread reads between one look and the next."""

    def __getitem__(self, at):
        found = super().__getitem__(at)
        self[at] = WHOLE
        return found


def test_a_page_read_between_two_looks_gives_its_place_back():
    machine = Machine(8, 4, (None,), places=20, ahead=8)
    machine.tier._files = Unread()
    machine.cache.load(TEXT, None, 8)
    load = machine.tier._load
    machine.cache._stop_loading(machine.cache.arrival)
    load.reading.states = ReadMeanwhile(load.reading.states)
    for _ in range(3):
        machine.cache.settle()
    assert not sum(machine.tier.slots._uses) and len(machine.tier.slots._free) == 20


def test_a_read_that_fails_ends_a_load_and_the_rest_is_computed():
    machine = Machine(8, 4, (None,), places=20, ahead=8)
    machine.tier._files = Unread()
    machine.cache.load(TEXT, None, 8)
    load = machine.tier._load
    load.reading.states[0] = MISSING
    machine.cache.settle()
    assert not machine.cache.loading and machine.cache.known(TEXT)[0] == 0
    assert not machine.tier.slots.by_use()
    machine.tier._files = None
    assert machine.computed(TEXT) == 0


# -- places ------------------------------------------------------------------------------------------------------------


class Looks(list):
    """Counts how often an entry is looked at."""

    count = 0

    def __getitem__(self, place):
        self.count += 1
        return super().__getitem__(place)


@pytest.mark.parametrize(("busy", "entered"), [(300, 100), (400, 0)])
def test_places_in_use_are_not_looked_at_again_for_each_page_that_comes(busy, entered):
    """A disk is slower than the engine: many of the oldest pages wait to be written."""
    slots, keys = Slots(400), [bytes([number % 256, number // 256]) for number in range(500)]
    places = slots.enter(keys[:400])
    slots.done(places[busy:])
    slots._uses = looks = Looks(slots._uses)
    found = slots.enter(keys[400:])
    assert sum(place != NO_PLACE for place in found) == entered == slots.evictions
    assert all(key in slots for key in keys[:busy]) and looks.count < 1000
    slots.done([place for place in found if place != NO_PLACE])
    slots.check()


def test_a_page_in_use_when_its_turn_comes_counts_as_used():
    slots = Slots(4)
    places = slots.enter([b"a", b"b", b"c", b"d"])
    slots.done(places[1:])
    slots.enter([b"e"])
    assert slots.by_use() == [b"c", b"d", b"a", b"e"]


# -- idle pages, each listed once --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_every_idle_page_is_listed_once_each_time_it_joins_and_before_it_is_evicted(seed):
    draw, line, count = random.Random(seed), IdlePages(12), 12
    listed: set[int] = set()
    for _ in range(500):
        inside = list(line)
        outside = [page for page in range(1, count + 1) if page not in inside]
        if draw.random() < 0.5 and outside:
            joins = draw.sample(outside, draw.randint(1, len(outside)))
            line.extend(joins)
            listed.difference_update(joins)
        elif inside:
            leaves = inside[: draw.randint(1, 3)] if draw.random() < 0.7 else [draw.choice(inside)]
            assert leaves != inside[: len(leaves)] or draw.random() < 2
            line.remove(leaves)
        coming = line.coming(draw.choice([1, 3, 2 * count]))
        assert not listed.intersection(coming) and len(set(coming)) == len(coming)
        listed.update(coming)
        everything = line.coming(2 * count)
        listed.update(everything)
        assert set(line) <= listed and coming + everything == [page for page in line if page in {*coming, *everything}]
        line.check()
