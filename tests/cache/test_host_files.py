"""Files behind host memory: threads read pages into their places, each once, and what cannot be read is known."""

import subprocess
import sys
import threading
import time

import pytest

from gradus.cache.disk.folder import PrefixFolder
from gradus.cache.disk.names import DIGEST_BYTES, Names
from gradus.cache.host import files as files_module
from gradus.cache.host.files import MISSING, PENDING, WHOLE, Files
from tests.cache.disk import FullFolder

SIZE, COUNT = 5000, 40  # not a multiple of a block
FRESH = bytes(DIGEST_BYTES + 1)
"""The key of a page that no file has."""


class Places(list):
    """Host memory, as a list of places."""

    def view(self, place: int) -> memoryview:
        return memoryview(self[place])


@pytest.fixture
def kept(tmp_path):
    """Files with a page each, their keys, and the folder."""
    folder = PrefixFolder(tmp_path / "p", 1 << 30)
    names = Names({}, folder.secret, 4)
    trail = names.trail(None, 1)
    names.extend(trail, list(range(4 * COUNT)), COUNT)
    keys, places = names.keys(trail, 0, COUNT, 0), Places(bytearray([at]) * SIZE for at in range(COUNT))
    files = Files(folder, names, places.view, readers=3)
    files.start()
    for place, key in enumerate(keys):
        files.write(key, place, order=COUNT - place)
    written = []
    while len(written) < COUNT:
        written += files.written()
    assert written == list(range(COUNT)) and all(key in files for key in keys)
    for place in range(COUNT):
        places[place] = bytearray(SIZE)
    yield files, keys, places, folder, names
    files.close()


def read(files, keys, places):
    reading = files.read(keys, places)
    while PENDING in reading.states:
        time.sleep(1e-3)
    return list(reading.states)


def caught_up(files):
    """Wait until the writing thread has done all that it has been given."""
    done = threading.Event()
    files._tasks.put(done.set)
    done.wait()


def test_several_threads_read_each_page_into_its_place(kept):
    files, keys, places, *_ = kept
    order = list(range(COUNT))[::-1]
    assert read(files, [keys[at] for at in order], order) == [WHOLE] * COUNT
    assert places == [bytearray([at]) * SIZE for at in range(COUNT)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"1"),
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"1"),
        lambda path: path.write_bytes(b""),
    ],
)
def test_a_page_that_is_not_whole_is_missing_and_forgotten(kept, damage):
    files, keys, _, folder, names = kept
    damage(folder.path / names.file(keys[3]))
    assert read(files, keys, range(COUNT)) == [WHOLE] * 3 + [MISSING] + [WHOLE] * (COUNT - 4)
    assert keys[3] not in files and not (folder.path / names.file(keys[3])).exists()


def test_a_bug_in_one_read_leaves_the_other_pages(kept):
    files, keys, places, *_ = kept
    places[5] = 5  # has no bytes
    assert read(files, keys, range(COUNT)) == [WHOLE] * 5 + [MISSING] + [WHOLE] * (COUNT - 6)


def test_what_was_not_read_before_it_was_stopped_is_missing(kept, monkeypatch):
    files, keys, _, folder, _ = kept
    whole = folder.read_into
    reading = None

    def slow(name, page):
        while reading is None:
            time.sleep(1e-3)
        reading.stopped = True
        return whole(name, page)

    monkeypatch.setattr(folder, "read_into", slow)
    reading = files.read(keys, range(COUNT))
    while PENDING in reading.states:
        time.sleep(1e-3)
    assert 1 <= reading.states.count(WHOLE) <= 3 and reading.states.count(MISSING) >= COUNT - 3


def test_a_page_that_is_dropped_while_older_ones_make_room_is_no_matter(kept, monkeypatch):
    """A reader drops a damaged file while the writing thread looks for the oldest ones."""
    files, _, _, folder, _ = kept
    older = folder._older

    def dropped_meanwhile(order):
        found = older(order)
        folder.remove(found[0])
        return found

    monkeypatch.setattr(folder, "_older", dropped_meanwhile)
    folder.most_bytes = folder.bytes
    files.write(FRESH, 0, order=COUNT + 1)
    while files.queued:
        files.written()
    assert files.lost == 0 and FRESH in files
    assert folder.bytes == sum(file.size for file in folder._files.values())


def test_a_bug_in_one_write_loses_that_page_alone(kept):
    files, keys, places, *_ = kept
    files.remove(keys[5])
    places[5] = 5  # has no bytes
    files.write(keys[5], 5, order=1)
    while files.queued:
        files.written()
    assert files.lost == 1 and keys[5] not in files and files.wants(keys[5])


def test_a_full_disk_warns_once_loses_pages_and_gives_every_place_back(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(files_module, "PAUSE_S", 0.0)
    folder = FullFolder(tmp_path / "p", 1 << 30)
    files = Files(folder, Names({}, folder.secret, 4), lambda place: memoryview(bytearray(SIZE)))
    files.start()
    places = []
    for full in (True, False):
        folder.full = full
        for place in range(3):
            files.write(FRESH, place, order=1)
            while files.queued:
                places += files.written()
            if not full:
                files.remove(FRESH)
    assert places == [0, 1, 2] * 2 and files.lost == 3 and len(caplog.records) == 1
    assert "No space left" in caplog.text and folder.bytes == 0
    files.close()


@pytest.fixture
def held_up(kept, monkeypatch):
    """Hold the writing thread up in its next write until the event is set."""
    _, _, _, folder, _ = kept
    begun, goes_on, write = threading.Event(), threading.Event(), folder.write

    def waits(name, page, order):
        begun.set()
        goes_on.wait()
        return write(name, page, order)

    monkeypatch.setattr(folder, "write", waits)
    yield begun, goes_on
    goes_on.set()


def test_a_page_that_is_removed_is_gone_at_once(kept, held_up):
    """Its numbers are not finite: no load may find it while other pages wait to be written."""
    files, keys, _, folder, names = kept
    begun, _ = held_up
    files.write(FRESH, 0, order=1)
    begun.wait()
    files.remove(keys[3])
    assert keys[3] not in files and not (folder.path / names.file(keys[3])).exists()


@pytest.mark.parametrize("again", [False, True])
def test_a_page_that_is_removed_while_it_is_written_does_not_stay(kept, held_up, again):
    """again: a page of the same name waits to be written by then."""
    files, _, places, *_ = kept
    begun, goes_on = held_up
    places[0], places[1] = bytearray(b"0") * SIZE, bytearray(b"1") * SIZE
    files.write(FRESH, 0, order=1)
    begun.wait()
    files.remove(FRESH)
    if again:
        assert files.wants(FRESH)
        files.write(FRESH, 1, order=1)
    goes_on.set()
    while files.queued:
        files.written()
    assert (FRESH in files) is again
    assert not again or (read(files, [FRESH], [2]) == [WHOLE] and places[2] == places[1])


def test_uses_are_noted_now_and_then_and_at_the_end(kept, monkeypatch):
    files, keys, _, folder, names = kept

    def order(at):
        return (folder.path / names.file(keys[at])).stat().st_mtime_ns

    files.touch([(keys[0], 10_000), (keys[1], 9_000)])
    files.written()
    caught_up(files)
    assert (order(0), order(1)) == (10_000, 9_000)
    files.touch([(keys[0], 20_000)])
    files.written()
    caught_up(files)
    assert order(0) == 10_000 and files_module.TOUCH_S > 1
    files.close()
    assert order(0) == 20_000


UNCLOSED = """
import sys
from pathlib import Path
from weakref import finalize

from gradus.cache.disk.folder import PrefixFolder
from gradus.cache.disk.names import Names
from gradus.cache.host.files import Files

folder = PrefixFolder(Path(sys.argv[1]), 1 << 30)
files = Files(folder, Names({}, folder.secret, 4), lambda place: memoryview(bytearray(5000)))
files.start()
finalize(folder, files.close)  # as an engine's
for place in range(20):
    files.write(bytes([place]) * 21, place, 1000 - place)
files.touch([(bytes(21), 2000)])
"""


def test_a_process_may_end_without_closing_its_engine(tmp_path):
    done = subprocess.run([sys.executable, "-c", UNCLOSED, tmp_path / "p"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(tmp_path.glob("p/*/*"))) == 20
