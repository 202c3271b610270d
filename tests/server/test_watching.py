"""The live X-ray over HTTP: what a watcher gets, what another key never sees, and what watching may take."""

import base64
import json
import threading
from contextlib import contextmanager
from functools import partial

import httpx
import numpy as np
import pytest

from gradus.course.probe import EngineProbe
from tests.server.conftest import eventually
from tests.server.test_final import final


class Reader:
    """Reads /xray on a thread. states: of the pages, from the whole picture and the changes since."""

    def __init__(self, server, headers=None):
        self.events, self.raw, self.ended, self.states = [], b"", False, None
        self.status, self._stop, self._server, self._headers = None, False, server, headers
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert eventually(lambda: self.events or (self.status != 200 and self.status)), "nothing came"

    def _read(self):
        # a client of its own: httpx closes a stream's connection when the block ends
        with (
            httpx.Client(base_url=self._server.url, timeout=20, trust_env=False) as http,
            http.stream("GET", "/xray", headers=self._headers) as answer,
        ):
            self.status = answer.status_code
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self._take(line[6:])
                if self._stop:
                    return
        self.ended = True

    def _take(self, text):
        self.raw += text.encode() + b"\n"
        event = json.loads(text)
        if "states" in (pages := event.get("pages", {})):
            self.states = np.frombuffer(base64.b64decode(pages["states"]), np.uint8).copy()
        runs = iter(pages.get("runs", ()))
        for first, length, state in zip(runs, runs, runs, strict=True):
            self.states[first : first + length] = state
        self.events.append(event)

    @property
    def last(self):
        return self.events[-1]

    def rows(self):
        return next((event["rows"] for event in reversed(self.events) if "rows" in event), None)

    def own(self):
        """The names that it was given, of rows and of the queue, in all events so far."""
        return {name for event in self.events for part in event["own"].values() for name in part.values()}

    def stop(self):
        self._stop = True
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextmanager
def reading(server, headers=None):
    reader = Reader(server, headers)
    try:
        yield reader
    finally:
        reader.stop()


@contextmanager
def asking(server, headers=None, **body):
    """A request under way; it is cancelled at the end."""
    connection = server.send(json.dumps(body | {"stream": True}).encode(), headers or ())
    try:
        yield
    finally:
        server.leave(connection, reset=True)


@pytest.fixture(scope="module")
def engine():
    """The final engine behind a server, with a step slow enough to see."""
    from tests.server.conftest import running

    with running(partial(final, max_sequences=4)) as server:
        yield server


def test_a_watcher_sees_batch_queue_steps_and_every_page(engine):
    probe = EngineProbe(engine.engine.core.parts)
    with reading(engine) as reader:
        assert reader.events[0]["whole"] and reader.events[0]["about"]["engine"] == "final"
        engine.generate(prompt=[5, 6, 7] * 30, max_tokens=100, ignore_eos=True)
        engine.generate(prompt=[5, 6, 7] * 30, max_tokens=100, ignore_eos=True)
        eventually(engine.idle)
        counts = probe.pages()
        expected = [counts.free, counts.idle, counts.held, 0]
        assert eventually(lambda: reader.last.get("counts") == expected)
        assert np.bincount(reader.states, minlength=4).tolist() == expected
        assert (reader.states == engine.engine.core.parts.scheduler.cache.pool.states()).all()
        assert eventually(lambda: sum(node[3] for node in reader.last.get("tree") or ()) == counts.idle)
        steps = [step for event in reader.events for step in event.get("steps", ())]
        assert sum(step[9] for step in steps) == 90 + 90 - 80, "the second prompt hits five pages"
        assert sum(step[14] for step in steps) == sum(step[15] for step in steps) == 2
        for _, start, planned, launched, device, ready, end, *_ in steps:
            assert start <= planned <= launched <= ready <= end and planned <= device <= ready


def test_steps_are_seen_by_one_who_comes_in_the_middle_of_them(engine):
    """The first commit that the recorder sees is of a plan that it has not seen: it must not take the next's place."""
    done = threading.Event()

    def busy():
        while not done.is_set():
            engine.generate(prompt=[5, 6, 7], max_tokens=200, ignore_eos=True)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            with reading(engine) as reader:
                assert eventually(lambda seen=reader: any(event.get("steps") for event in seen.events), 5)
    finally:
        done.set()
        for thread in threads:
            thread.join(30)
    assert eventually(engine.idle)


def test_nobody_watches_and_the_engine_records_nothing(engine):
    scheduler = engine.engine.core.parts.scheduler
    with reading(engine):
        assert eventually(lambda: "schedule" in vars(scheduler))
    assert eventually(lambda: "schedule" not in vars(scheduler) and "run" not in vars(engine.engine.core.parts.runner))
