"""The live X-ray over HTTP: what a watcher gets, what another key never sees, and what watching may take."""

import asyncio
import base64
import json
import threading
import time
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import httpx
import numpy as np
import pytest

from gradus.course.probe import EngineProbe
from gradus.server.engine.messages import Watched
from gradus.server.engine.watching import Watching
from gradus.server.http.keys import Key, digest_of, new_key, write_keys
from gradus.server.http.watch import stream
from gradus.server.xray import watchers as watching
from gradus.server.xray.trace import trace
from gradus.server.xray.watchers import Owner, Watchers, encode
from tests.server.conftest import PLAIN, eventually, running
from tests.server.scripted import KILL
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
            httpx.Client(base_url=self._server.url, timeout=20, **PLAIN) as http,
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


# -- whose is whose ----------------------------------------------------------------------------------------------------

ALICE, BOB, WATCH = (new_key() for _ in range(3))


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def slow(**settings):
    """The final engine with steps of ten milliseconds."""
    llm = final(**settings)
    engine = llm.core.parts
    step = engine.step

    def slowly():
        time.sleep(0.01)
        return step()

    engine.step = slowly
    return llm


@pytest.fixture
def keyed(serving, tmp_path):
    path = tmp_path / "keys.yaml"
    keys = [Key("alice", digest_of(ALICE)), Key("bob", digest_of(BOB)), Key("watch", digest_of(WATCH), "monitor")]
    write_keys(path, {key.name: key for key in keys})
    return serving(partial(slow, max_sequences=2), api_keys=str(path))


SECRET = "zebras whistle quietly beneath crooked umbrellas until somebody notices"


def test_names_of_requests_go_to_their_own_key_and_texts_and_tokens_to_nobody(keyed):
    body = {"prompt": SECRET, "max_tokens": 300, "ignore_eos": True, "n": 3}
    alice, bob = ([f"Authorization: Bearer {key}"] for key in (ALICE, BOB))
    ours = {"prompt": [1, 2, 3], "max_tokens": 300, "ignore_eos": True}
    with (
        reading(keyed, bearer(ALICE)) as hers,
        reading(keyed, bearer(BOB)) as his,
        reading(keyed, bearer(WATCH)) as theirs,
        asking(keyed, alice, **body),
        asking(keyed, bob, **ours),
    ):
        assert eventually(lambda: len(hers.rows() or ()) == 2 and hers.last.get("waiting") == 2 and hers.own())
        assert eventually(lambda: len(hers.own()) == 3 and len(his.own()) == 1), "of rows and of the queue"
        assert hers.own().isdisjoint(his.own()) and not theirs.own()
        assert all(len(row) == 6 for row in his.rows()) and len(theirs.rows()) == 2
        asked = [keyed.client.owner(handle) for handle in list(keyed.client._samples._samples)]
        everything = hers.raw + his.raw + theirs.raw
    tokens = list(SECRET.encode())  # the random model's ids are bytes
    assert ",".join(map(str, tokens[:4])) not in everything.decode()
    for word in (*SECRET.split(), "alice", "bob", "salt"):
        assert word.encode() not in everything
    for owner in filter(None, asked):
        other = his if owner.key == "alice" else hers
        assert owner.request_id.encode() not in other.raw + theirs.raw


def test_a_key_is_needed_and_every_role_will_do(keyed):
    for path in ("/xray", "/xray/trace", "/xray?once=1"):
        assert keyed.http.get(path).status_code == 401
        assert keyed.http.get(path, headers=bearer("gradus-nothing")).status_code == 401
    for key in (ALICE, WATCH):
        assert keyed.http.get("/xray?once=1", headers=bearer(key)).status_code == 200


def test_a_trace_names_the_own_requests_alone(keyed):
    with (
        reading(keyed, bearer(BOB)) as bobs,
        asking(keyed, [f"Authorization: Bearer {ALICE}"], prompt=SECRET, max_tokens=300, ignore_eos=True),
    ):
        assert eventually(lambda: bobs.rows() and any(event.get("steps") for event in bobs.events))
        hers, his = (keyed.http.get("/xray/trace", headers=bearer(key)).json() for key in (ALICE, BOB))
    names = [{e["name"] for e in each["traceEvents"] if e.get("cat") == "request"} for each in (hers, his)]
    assert all(name.startswith("gen-") for name in names[0]) and names[1] == {"#1"}


# -- what a client can multiply ----------------------------------------------------------------------------------------


def test_so_many_may_watch_and_the_next_is_told_when_to_return(serving, monkeypatch):
    monkeypatch.setattr(watching, "MOST_WATCHERS", 3)
    server = serving()
    readers = [Reader(server) for _ in range(3)]
    try:
        answer = server.http.get("/xray")
        assert answer.status_code == 503 and answer.headers["retry-after"] == "5"
        assert "3 clients watch already" in answer.json()["error"]["message"]
        readers.pop().stop()
        server.generate(prompt=[1], max_tokens=2)
        assert eventually(lambda: len(server.client.watchers._watchers) == 2)
        assert server.http.get("/xray?once=1").status_code == 200
    finally:
        for reader in readers:
            reader.stop()


def test_a_key_watches_so_often_and_leaves_room_for_others(keyed):
    readers = [Reader(keyed, bearer(ALICE)) for _ in range(watching.MOST_OF_A_KEY)]
    try:
        answer = keyed.http.get("/xray", headers=bearer(ALICE))
        assert answer.status_code == 503 and "this API key watches 4 times already" in answer.json()["error"]["message"]
        assert keyed.http.get("/xray?once=1", headers=bearer(BOB)).status_code == 200
    finally:
        for reader in readers:
            reader.stop()


class Fixed:
    """An engine without anything to show."""

    state = reason = "ready"
    watchable = True

    def __init__(self):
        self.sent = []

    def send(self, command):
        self.sent.append(command.on)

    def owner(self, handle):
        return Owner("alice" if handle < 10 else "bob", f"gen-{handle}", 0)

    def described(self):
        return {}

    def numbers(self):
        return {}


def message(*states, whole=True, time=1):
    return Watched(time, len(states), 16, whole, bytes(states))


def test_a_watcher_that_does_not_read_holds_one_event_and_then_gets_the_whole_picture():
    async def watch():
        engine = Fixed()
        watchers = Watchers(engine)
        watcher = watchers.add("")
        assert json.loads(await watcher.next())["whole"]
        for moment in range(1, 1000):
            watchers.read(message(0, 1, moment % 4, time=moment))
        waiting = [value for value in (watcher._next,) if value is not None]
        event = json.loads(await watcher.next())
        assert len(waiting) <= 1 and event["whole"] and watcher.skipped >= 997
        assert base64.b64decode(event["pages"]["states"]) == bytes([0, 1, 999 % 4])
        watchers.read(message(0, 1, 2, time=1000))
        assert "whole" not in json.loads(await watcher.next())
        watchers.remove(watcher)
        assert engine.sent == [True, False]

    asyncio.run(watch())


def test_an_event_is_encoded_once_for_all_watchers_of_a_key(monkeypatch):
    made = []
    monkeypatch.setattr(watching, "encode", lambda content: made.append(content) or encode(content))

    async def watch():
        watchers = Watchers(Fixed())
        watcher = [watchers.add(key) for key in ("", "alice", "alice", "bob", "bob")]
        for each in watcher:
            await each.next()
        made.clear()
        watchers.read(message(0, 1))
        events = [await each.next() for each in watcher]
        assert len(made) == 1 + 3 and events[1] is events[2] and events[3] is events[4]
        for each in watcher:
            watchers.remove(each)

    asyncio.run(watch())


def test_columns_of_a_wrong_length_end_nothing(caplog):
    async def watch():
        watchers = Watchers(Fixed())
        watcher = watchers.add("")
        for broken in ({"rows": b"123"}, {"steps": b"12345678"}, {"pages": b"1234", "whole": False}, {"tree": b"1234"}):
            watchers.read(Watched(1, **broken))
        assert json.loads(await watcher.next())["whole"]
        watchers.remove(watcher)

    asyncio.run(watch())
    assert len(caplog.records) == 4


# -- engines and their lives -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["p00", "p03", "p04", "p05", "p08"])
def test_a_phase_shows_what_it_has(serving, phase):
    server = serving(partial(final, phase=phase))
    with reading(server) as reader:
        server.generate(prompt=[5, 6, 7] * 20, max_tokens=30, ignore_eos=True)
        steps = lambda: [step for event in reader.events for step in event.get("steps", ())]  # noqa: E731
        assert eventually(lambda: sum(step[15] for step in steps()) == 1), "its end is seen"
        assert sum(step[14] for step in steps()) == 1 and all(step[8] == 1 for step in steps())
        paged, indexed = phase >= "p04", phase in ("p05", "p08")
        assert any("pages" in event for event in reader.events) == paged
        assert eventually(lambda: any(event.get("tree") for event in reader.events), 3 if indexed else 0) == indexed
        if paged:
            states = server.engine.core.parts.scheduler.cache.pool.states()
            assert eventually(lambda: (reader.states == states).all())
        if phase == "p08":
            assert sum(step[11] for step in steps()) >= sum(step[12] for step in steps()) >= 0


def test_drafts_are_counted_by_step_and_by_row(serving):
    server = serving(partial(slow, speculate="draft:random:tiny-llama", drafts=3))
    with reading(server) as reader, asking(server, prompt=[5, 6, 7], max_tokens=300, ignore_eos=True, temperature=0):
        assert eventually(lambda: any(row[5] > 20 for row in reader.rows() or ()))
        steps = [step for event in reader.events for step in event.get("steps", ())]
        drafted, accepted = (sum(step[place] for step in steps) for place in (11, 12))
        assert drafted >= accepted > 20


def test_a_preemption_is_counted(serving):
    server = serving(partial(slow, cache_tokens=256, max_sequences=4))
    asked = {"prompt": [5, 6, 7] * 10, "max_tokens": 200, "ignore_eos": True}
    with reading(server) as reader, asking(server, **asked), asking(server, **asked | {"prompt": [9, 8] * 15}):
        assert eventually(lambda: sum(step[13] for e in reader.events for step in e.get("steps", ())) > 0, 20)


def test_a_watcher_outlives_its_engine(serving):
    server = serving("DeadlyCore()")
    with reading(server) as reader:
        server.generate(prompt=[KILL], max_tokens=2)
        assert eventually(lambda: reader.last["state"] == "restarting")
        assert eventually(lambda: reader.last["state"] == "ready", 20)
        server.generate(prompt=[1], max_tokens=2)
        before = len(reader.events)
        assert eventually(lambda: "time" in reader.last and len(reader.events) > before), "the new engine is watched"


def test_watching_ends_after_a_while_so_that_a_removed_key_sees_no_more(serving, monkeypatch):
    monkeypatch.setattr(stream, "LONGEST_S", 0.5)
    reader = Reader(serving())
    assert eventually(lambda: reader.ended) and reader.events
    reader.stop()


def test_watching_ends_with_the_server(serving):
    server = serving()
    reader = Reader(server)
    server.on_loop(server.server.stop)
    assert eventually(lambda: reader.ended), "the stream ends in order"
    reader.stop()


def test_an_engine_that_cannot_be_looked_at_serves_on(serving, monkeypatch, caplog):
    server = serving(partial(final))
    monkeypatch.setattr(Watching, "_add_rows", lambda self, found: 1 / 0)
    with reading(server) as reader:
        assert len(server.generate(prompt=[1], max_tokens=4, ignore_eos=True).json()["token_ids"]) == 4
        assert eventually(lambda: "is watched no longer" in caplog.text) and reader.last["state"] == "ready"
    assert server.health() == 200


def test_watching_is_no_generation_and_a_line_in_the_log(serving, caplog):
    caplog.set_level("INFO")
    server = serving(log_requests=True)
    with reading(server):
        pass
    server.http.get("/xray?once=1")
    assert server.stats()["completed"] == 0

    def lines():
        return [record.getMessage() for record in caplog.records if "route=/xray " in record.getMessage()]

    assert eventually(lambda: len(lines()) == 2) and not any("samples" in line for line in lines())


# -- a trace -----------------------------------------------------------------------------------------------------------


def test_a_trace_keeps_to_the_format(engine):
    with reading(engine) as reader:
        for _ in range(3):
            engine.generate(prompt=[5, 6, 7] * 30, max_tokens=50, ignore_eos=True, n=2)
        assert eventually(lambda: sum(step[15] for e in reader.events for step in e.get("steps", ())) == 6)
        answer = engine.http.get("/xray/trace")
    assert "attachment" in answer.headers["content-disposition"]
    made = answer.json()
    assert made["displayTimeUnit"] == "ms" and made["traceEvents"]
    open_, tracks = {}, {}
    for event in made["traceEvents"]:
        assert {"ph", "pid", "name"} <= event.keys() and event["ph"] in "MXCbne"
        if event["ph"] == "M":
            continue
        assert isinstance(event["ts"], int) and event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["tid"] in (1, 2)
            tracks.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
        if event["ph"] in "bne":  # slices of one id begin before they end
            place = event["cat"], event["id"], event["name"]
            assert event["ph"] == "b" or place in open_
            open_[place] = event["ph"]
    assert len([place for place, last in open_.items() if last == "e"]) == 6
    device = sorted(tracks[2])
    assert all(one[1] <= two[0] for one, two in pairwise(device)), "the device runs one step at a time"


def test_an_unwatched_engine_is_recorded_for_so_many_seconds(engine):
    with asking(engine, prompt=[5, 6, 7], max_tokens=400, ignore_eos=True):
        made = engine.http.get("/xray/trace?seconds=0.3").json()
    assert any(event["ph"] == "X" for event in made["traceEvents"])
    for wrong in ("x", "-1", "11", "nan"):
        answer = engine.http.get(f"/xray/trace?seconds={wrong}")
        assert answer.status_code == 400 and "between 0 and 10" in answer.json()["error"]["message"]


def test_a_sample_that_was_admitted_before_the_first_step_has_a_beginning_and_one_that_runs_no_end():
    events = [[100, 1, 7], [110, 0, 8], [120, 0, 8], [130, 0, 9]]  # time, kind (admitted, ended), handle
    slices = [event for event in trace([], events, {8: "gen-own"}, "m")["traceEvents"] if event["ph"] in "bne"]
    assert [(each["ph"], each["name"], each["ts"]) for each in slices] == [
        ("b", "#1", 0), ("e", "#1", 0), ("b", "gen-own", 10), ("n", "gen-own", 20), ("b", "#3", 30),
    ]  # fmt: skip
