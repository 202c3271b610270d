"""Pages on disk: whatever happens to them, a sequence reads what it would have computed, or computes it."""

import logging
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gradus.cache.disk import folder as folders
from gradus.cache.disk import tier as tiers
from gradus.cache.disk.folder import HEADER, PrefixFolder, secret_of
from gradus.cache.disk.names import Names
from gradus.cache.paged import PagedCache
from gradus.cache.windows import first_page
from gradus.errors import ConfigError
from tests.cache.disk import Machine
from tests.cache.memory import Sequence

WHICH = st.integers(0, 1000)
TOKENS = st.lists(st.integers(0, 1), max_size=12)
SALTS = st.sampled_from([None, None, "a", "b"])
CUT = st.integers(0, 40)
COUNTS = st.lists(st.integers(1, 16), max_size=3)
WORTH = 3
QUICKLY = settings(max_examples=100, derandomize=True, database=None, deadline=None, phases=[Phase.generate])


@pytest.fixture(autouse=True)
def short_sequences_are_worth_it(monkeypatch):
    monkeypatch.setattr(tiers, "WORTH_TOKENS", WORTH)


# -- any mixture of sequences, restarts and damage ---------------------------------------------------------------------


class DiskMachine(RuleBasedStateMachine):
    """The tier against the memory, which sees what a query reads, and against a set of all pages ever published.

    Until a file is damaged, evicted or not written, a restarted cache hits exactly the longest prefix in the set.
    """

    folder: ClassVar[Path]
    WINDOWS: ClassVar = [(None,), (None,), (None, 3), (None, None, 5, 2)]

    @initialize(
        pages=st.integers(4, 64), size=st.integers(1, 4), windows=st.sampled_from(WINDOWS), small=st.integers(0, 4)
    )
    def start(self, pages, size, windows, small):
        self.number = getattr(type(self), "count", 0)
        type(self).count = self.number + 1
        most = 8 * folders.BLOCK if not small else 1 << 30
        self.machine = Machine(self.folder / str(self.number), pages, size, windows, most)
        self.live: list[Sequence] = []
        self.texts: list[tuple[list[int], str | None]] = [([], None)]
        self.published: set[tuple] = set()
        self.whole = bool(small)
        self.count = 0

    def content(self, group, salt, tokens, place):
        return group, salt, tuple(tokens[: (place + 1) * self.machine.size])

    def longest(self, tokens, salt) -> int:
        size = self.machine.size
        for hit in range((len(tokens) - 1) // size, 0, -1):
            if all(
                self.content(group, salt, tokens, place) in self.published
                for group, window in enumerate(self.machine.windows)
                for place in range(first_page(hit * size, window, size), hit)
            ):
                return hit * size
        return 0

    def begun(self, like, cut, tail, salt):
        """A text that begins like another, most often with the same salt."""
        text, before = self.texts[like % len(self.texts)]
        return [*text[:cut], *tail, 1], before if cut % 4 else salt

    @rule(like=WHICH, cut=CUT, tail=TOKENS, salt=SALTS, times=st.none() | st.integers(0, 9), counts=COUNTS)
    def admit(self, like, cut, tail, salt, times, counts):
        tokens, salt = self.begun(like, cut, tail, salt)
        self.machine.warm(tokens, salt, times)
        if not self.machine.cache.loading:
            self.sequence(tokens, salt, counts)

    def sequence(self, tokens, salt, counts):
        self.count += 1
        sequence = Sequence(self.machine.cache, self.machine.memory, self.count, tokens, salt)
        self.live.append(sequence)
        self.texts.append((tokens, salt))  # the text grows with the answer
        for count in counts:
            self.step(sequence, count)
        return sequence.hit

    @rule(which=WHICH, counts=COUNTS)
    def run(self, which, counts):
        for count in counts:
            if self.live:
                self.step(self.live[which % len(self.live)], count)

    def step(self, sequence, count):
        if not sequence.step(count):
            return
        resident = self.machine.cache.residents[sequence.id]
        if len(sequence.tokens) >= WORTH:
            self.published |= {
                self.content(group, sequence.salt, sequence.tokens, place)
                for group, table in enumerate(resident.tables)
                for place in range(resident.cursor.depth)
                if table[place]
            }

    @rule(which=WHICH, poisoned=st.integers(0, 6))
    def leave(self, which, poisoned):
        if not self.live:
            return
        sequence = self.live.pop(which % len(self.live))
        if poisoned := poisoned < 2 and sequence.step(3, poisoned=True):
            self.whole = False
            # a chunk has no logits, so its pages are published before its numbers are seen
            self.machine.cache.publish(sequence.id, sequence.tokens, sequence.stored)
        sequence.release(poisoned)

    @rule(times=st.integers(1, 9))
    def work(self, times):
        for _ in range(times):
            self.machine.tier.work()
        self.machine.cache.settle()

    @rule(seed=WHICH)
    def damage(self, seed):
        if self.machine.damage(random.Random(seed)):
            self.whole = False

    @rule(full=st.booleans())
    def fill(self, full):
        self.machine.folder.full = full
        self.whole &= not full
        if not full:
            self.machine.tier._resumes = 0.0

    @rule(written=st.sampled_from([True, True, False]), like=WHICH, cut=CUT, tail=TOKENS, salt=SALTS, counts=COUNTS)
    def restart(self, written, like, cut, tail, salt, counts):
        """One text comes before anything else: nothing is in memory."""
        self.live.clear()
        self.whole &= written
        self.machine.restart(written)
        tokens, salt = self.begun(like, cut, tail, salt)
        wanted = self.longest(tokens, salt)
        self.machine.warm(tokens, salt)
        hit = self.sequence(tokens, salt, counts)
        if self.whole and wanted // self.machine.size * len(self.machine.windows) <= self.machine.pages:
            assert hit == wanted
        assert hit <= wanted or not self.whole

    @invariant()
    def balanced(self):
        if hasattr(self, "machine"):
            self.machine.cache.check()
            folder = self.machine.folder
            assert folder.bytes == sum(file.size for file in folder._files.values()) <= folder.most_bytes

    def teardown(self):
        if hasattr(self, "machine"):
            self.machine.tier.close()


def run(folder: Path, how: settings | None = None):
    run_state_machine_as_test(type("Machine", (DiskMachine,), {"folder": folder, "count": 0}), settings=how)


def test_whatever_happens_a_sequence_reads_what_it_would_have_computed(tmp_path):
    run(tmp_path)


def salt_forgotten(self, salt, now, trail=Names.trail):
    return trail(self, None, now)


def one_page_alone(self, trail, tokens, end, extend=Names.extend):
    """Name a page by its own tokens, without those before it."""
    extend(self, trail, tokens, end)
    size = self._page_size
    trail.digests[1:] = [self._digest(bytes(tokens[p * size : (p + 1) * size])) for p in range(len(trail.digests) - 1)]


def believed(self, name, count):
    try:
        return memoryview((self.path / name).read_bytes())[HEADER.size :][:count]
    except FileNotFoundError:
        return None


def held_no_longer(self, arrival, stop=PagedCache._stop_loading):
    self.pool.drop(*self._pages(arrival.tables)[::-1])
    stop(self, arrival)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Names, "trail", salt_forgotten),
        (Names, "extend", one_page_alone),
        (PrefixFolder, "read", believed),
        (PagedCache, "_stop_loading", held_no_longer),
    ],
)
def test_a_broken_tier_is_noticed(tmp_path, monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Exception):  # noqa: B017 a query's read, a struct that does not fit, or the books
        run(tmp_path, QUICKLY)


# -- one thing at a time -----------------------------------------------------------------------------------------------


def computed(machine: Machine, tokens: list[int], salt: str | None = None) -> int:
    """Run one sequence to its prompt's end. Returns the positions that it hit."""
    machine.warm(tokens, salt)
    sequence = Sequence(machine.cache, machine.memory, "s", list(tokens), salt)
    while sequence.stored < len(tokens):
        assert sequence.step(5)
    sequence.release()
    machine.cache.check()
    return sequence.hit


TEXT = [*range(20)]


def test_a_prefix_is_hit_after_a_restart(tmp_path):
    machine = Machine(tmp_path / "p", 32, 4, (None,))
    assert [computed(machine, TEXT), computed(machine, TEXT)] == [0, 16]
    machine.restart()
    assert computed(machine, [*TEXT[:11], 77, 78, 79]) == 8, "as far as it is the same"
    assert computed(machine, TEXT) == 16
    while machine.tier.work():
        pass
    usage = machine.cache.usage().disk
    assert usage.hit_positions == 16 and usage.files == 6, "8, then 8 more; five pages, and one of the other text"
    assert usage.queued == usage.damaged == usage.lost == 0


def test_salts_never_mix_and_no_name_shows_one(tmp_path):
    machine = Machine(tmp_path / "p", 32, 4, (None,))
    computed(machine, TEXT, "alice")
    machine.restart()
    assert [computed(machine, TEXT, salt) for salt in (None, "bob", "alice")] == [0, 0, 16]
    assert not [path for path in machine.files() if "alice" in str(path) or b"alice" in path.read_bytes()]


@pytest.mark.parametrize("written", [False, True])
def test_poisoned_pages_leave_the_disk(tmp_path, written):
    machine = Machine(tmp_path / "p", 32, 4, (None,))
    Sequence(machine.cache, machine.memory, "h", list(TEXT), None).step(20)  # it holds its pages
    sequence = Sequence(machine.cache, machine.memory, "s", [*TEXT[:8], *TEXT], None)
    sequence.step(12, poisoned=True)
    # a chunk has no logits, so its pages are published before its numbers are seen
    machine.cache.publish("s", sequence.tokens, sequence.stored)
    while written and machine.tier.work():
        pass
    sequence.release(poisoned=True)
    machine.restart()
    assert computed(machine, [*TEXT[:8], *TEXT]) == 8
    assert computed(machine, TEXT) == 16


def test_poisoned_pages_that_were_found_on_disk_leave_it(tmp_path):
    """A sequence is cancelled before its numbers are seen, and the next one finds its pages after a restart."""
    machine = Machine(tmp_path / "p", 32, 4, (None,))
    assert computed(machine, [*TEXT[:4], 77]) == 0
    cancelled = Sequence(machine.cache, machine.memory, "s", list(TEXT), None)
    cancelled.step(12, poisoned=True)
    machine.cache.publish("s", cancelled.tokens, cancelled.stored)
    cancelled.release()
    machine.restart()
    machine.warm(TEXT, None)
    healthy = Sequence(machine.cache, machine.memory, "h", [*TEXT[:4], 77, 78, 79, 80], None)
    ill = Sequence(machine.cache, machine.memory, "s", list(TEXT), None)
    assert (healthy.hit, ill.hit) == (4, 16) and ill.step(4, poisoned=True)
    ill.release(poisoned=True)
    machine.restart()
    assert computed(machine, TEXT) == 4, "the page that another sequence held stays"


def test_another_model_or_another_secret_hits_nothing(tmp_path):
    machine = Machine(tmp_path / "p", 32, 4, (None,))
    computed(machine, TEXT)
    machine.restart()
    machine.tier._names = Names({"model": "b"}, machine.folder.secret, 4)
    assert computed(machine, TEXT) == 0
    machine.restart()
    machine.tier._names = Names({"model": "a"}, b"another", 4)
    assert computed(machine, TEXT) == 0


def test_windows_need_the_pages_that_they_see(tmp_path):
    """A window of 5: a hit of 16 positions needs its positions 12 to 15: one page of 4."""
    machine = Machine(tmp_path / "p", 32, 4, (None, 5))
    computed(machine, TEXT)
    machine.restart()
    for path in machine.files():
        if (
            path.name.endswith(".1")
            and path.stat().st_mtime_ns > min(p.stat().st_mtime_ns for p in machine.files()) + 1000
        ):
            path.unlink()  # all but the last two places
    assert computed(machine, TEXT) == 16


def test_a_damaged_file_is_dropped_with_one_line_and_written_again(tmp_path, caplog):
    machine = Machine(tmp_path / "p", 32, 4, (None,))
    computed(machine, TEXT)
    machine.restart()
    first = max(machine.files(), key=lambda path: path.stat().st_mtime_ns)
    first.write_bytes(first.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        assert computed(machine, TEXT) == 0
    assert len(caplog.records) == 1 and first.name in caplog.text and "computed again" in caplog.text
    machine.restart()
    assert computed(machine, TEXT) == 16


def test_a_full_disk_warns_once_and_the_engine_goes_on(tmp_path, caplog):
    machine = Machine(tmp_path / "p", 32, 4, (None,))
    machine.folder.full = True
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            computed(machine, [number, *TEXT])
            while machine.tier.work():
                pass
            machine.tier._resumes = 0.0  # a minute later
    assert len(caplog.records) == 1 and "No space left" in caplog.text
    assert machine.files() == [] and machine.cache.usage().disk.lost > 0
    machine.folder.full = False
    computed(machine, TEXT)
    machine.restart()
    assert computed(machine, TEXT) == 16


def test_paths_are_evicted_from_their_ends_and_the_oldest_first(tmp_path):
    machine = Machine(tmp_path / "p", 64, 4, (None,), most=8 * folders.BLOCK)
    for name in (50, 60):
        computed(machine, [name, *TEXT])  # five pages each: two too many
        machine.restart()
        time.sleep(0.001)
    assert machine.folder.bytes <= 8 * folders.BLOCK
    assert computed(machine, [60, *TEXT]) == 20
    machine.restart()
    assert 0 < computed(machine, [50, *TEXT]) < 20, "its beginning is still there"


def test_a_use_in_memory_keeps_the_files(tmp_path):
    machine = Machine(tmp_path / "p", 64, 4, (None,), most=10 * folders.BLOCK)
    for name in (50, 60, 50, 70):
        computed(machine, [name, *TEXT])
        while machine.tier.work():
            pass
        time.sleep(0.001)
    machine.restart()
    assert (computed(machine, [50, *TEXT]), computed(machine, [70, *TEXT])) == (20, 20)


def test_a_prompt_larger_than_the_directory_keeps_its_beginning(tmp_path):
    machine = Machine(tmp_path / "p", 64, 4, (None,), most=3 * folders.BLOCK)
    computed(machine, TEXT)
    machine.restart()
    assert computed(machine, TEXT) == 12


def test_a_load_gives_way_to_a_sequence_that_runs(tmp_path):
    machine = Machine(tmp_path / "p", 6, 4, (None,))
    computed(machine, TEXT)
    machine.restart()
    runs = Sequence(machine.cache, machine.memory, "runs", [9], None)
    assert runs.step(1)
    machine.cache.load(TEXT, None, 4)
    machine.tier.work()  # one page of four
    assert machine.cache.loading
    while runs.stored < 12:
        assert runs.step(1), "it finds room, as if nothing were loaded"
    assert not machine.cache.loading
    assert computed(machine, TEXT[:6]) == 4, "what was read by then is in the index"


def test_a_slow_disk_ends_a_load(tmp_path, monkeypatch):
    machine = Machine(tmp_path / "p", 32, 4, (None,))
    computed(machine, TEXT)
    machine.restart()
    monkeypatch.setattr(tiers, "GRACE_S", 0.0)
    monkeypatch.setattr(tiers, "TOKEN_S", 0.0)
    assert computed(machine, TEXT) == 4


def test_short_sequences_are_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(tiers, "WORTH_TOKENS", 21)
    machine = Machine(tmp_path / "p", 32, 4, (None,))
    computed(machine, TEXT[:-1])
    while machine.tier.work():
        pass
    assert machine.files() == []


def test_a_step_copies_a_bounded_number_of_pages(tmp_path, monkeypatch):
    machine = Machine(tmp_path / "p", 32, 4, (None,))
    monkeypatch.setattr(tiers, "STEP_BYTES", 2 * machine.tier._store.page_bytes)
    machine.tier._resumes = float("inf")
    sequence = Sequence(machine.cache, machine.memory, "s", list(TEXT), None)
    sequence.step(20)
    machine.tier._resumes = 0.0
    queued = []
    for _ in range(3):
        machine.cache.publish("s", sequence.tokens, 20)
        machine.tier.save(machine.cache.residents["s"].trail, sequence.tokens, machine.cache.tables("s"), 5)
        queued.append(machine.cache.usage().disk.queued)
    assert queued == [2, 4, 5]


# -- the directory -----------------------------------------------------------------------------------------------------


def test_the_directory_and_its_files_are_private(tmp_path):
    before = os.umask(0)
    try:
        machine = Machine(tmp_path / "p", 32, 4, (None,))
        computed(machine, TEXT)
        machine.restart()
    finally:
        os.umask(before)
    paths = [tmp_path / "p", *(tmp_path / "p").rglob("*")]
    assert len(paths) > 8
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o700, 0o600}


def test_a_directory_that_others_may_read_is_refused(tmp_path):
    (tmp_path / "p").mkdir(mode=0o750)
    (tmp_path / "p").chmod(0o750)
    with pytest.raises(ConfigError, match=r"prefix_dir .*/p must be private, .* `chmod 700`"):
        PrefixFolder(tmp_path / "p", 1 << 20)


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "p").touch()
    with pytest.raises(ConfigError, match=r"prefix_dir .*/p cannot be used: File exists"):
        PrefixFolder(tmp_path / "p", 1 << 20)


def test_one_engine_at_a_time(tmp_path):
    first = PrefixFolder(tmp_path / "p", 1 << 20)
    with pytest.raises(ConfigError, match=r"prefix_dir .*/p is in use by another engine"):
        PrefixFolder(tmp_path / "p", 1 << 20)
    first.close()
    PrefixFolder(tmp_path / "p", 1 << 20).close()


def test_a_secret_is_made_once(tmp_path):
    made = secret_of(tmp_path / "p")
    assert len(made) == 32 and secret_of(tmp_path / "p") == made != secret_of(tmp_path / "q")


def test_foreign_files_are_left_alone(tmp_path):
    (tmp_path / "p").mkdir(mode=0o700)
    (tmp_path / "p" / "notes.txt").write_text("mine")
    folder = PrefixFolder(tmp_path / "p", folders.BLOCK)
    assert folder.write("0" * 32 + "/" + "1" * 40 + ".0", b"x", 1)
    (tmp_path / "p" / ("0" * 32) / "mine.txt").write_text("mine")
    folder.close()
    folder = PrefixFolder(tmp_path / "p", 0)
    assert len(folder) == 0 and len(list((tmp_path / "p").rglob("*.txt"))) == 2
    folder.close()


WRITER = """
import sys
from pathlib import Path
from gradus.cache.disk.folder import PrefixFolder
folder = PrefixFolder(Path(sys.argv[1]), 1 << 30)
for number in range(1, 1 << 20):
    folder.write("0" * 32 + f"/{number:040x}.0", bytes([number % 256]) * 200_000, number)
    print(number, flush=True)
"""


def test_a_process_killed_while_it_writes_leaves_whole_files(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "p")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(20):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    folder = PrefixFolder(tmp_path / "p", 1 << 30)
    assert len(folder) >= last and not list((tmp_path / "p").rglob("*.unfinished"))
    for name in list(folder._files):
        page = folder.read(name, 200_000)
        assert page is not None and page[0] == page[-1] == int(name.split("/")[1].split(".")[0], 16) % 256
    folder.close()
