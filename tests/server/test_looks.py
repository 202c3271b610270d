"""How often the engine's loop looks at itself for watchers, and what that may take."""

import queue
import threading
import time

import numpy as np
import pytest

from gradus.bench.predict.simulation import Simulation, short_requests
from gradus.server.engine.loop import EngineLoop
from gradus.server.engine.messages import STEP, Cancel, Ping, Report, Stop, Submit, Watch, Watched
from gradus.server.engine.steps import KEPT_STEPS, UnderWay
from gradus.server.engine.watching import MOST_NODES, MOST_QUEUED, Watching
from gradus.server.engine.wire import LARGEST_FRAME, frame, hello_and_messages
from gradus.server.xray.picture import Picture
from tests.server.conftest import eventually


class Looped:
    """A simulated engine under its loop, with requests 0, 1, 2, … that wait or run."""

    def __init__(self, batch=8, requests=0, pages=640, answer=(40, 40)):
        self.simulation, self.commands, self.posted = Simulation(batch, pages), queue.SimpleQueue(), []
        self.loop = EngineLoop(self.simulation.engine, self.commands, self.posted.append)
        for handle, request in enumerate(short_requests(requests, 32, answer)):
            self.commands.put(Submit.of(handle, request))

    def watch(self, on=True):
        self.commands.put(Watch(on))

    def turn(self, times=1, each=lambda: None):
        for _ in range(times):
            each()
            self.commands.put(Ping())  # so that a resting loop turns as well
            self.loop._turn()

    def look_each_turn(self, times):
        self.turn(times, lambda: self.loop._watching and setattr(self.loop._watching, "next_look", 0.0))

    @property
    def looks(self):
        return [message for message in self.posted if isinstance(message, Watched)]


def test_an_engine_that_nobody_watches_posts_and_wraps_nothing():
    looped = Looped(requests=4)
    looped.turn(30)
    assert not looped.looks and {type(message) for message in looped.posted} == {Report}
    scheduler, runner = looped.simulation.engine.scheduler, looped.simulation.engine.runner
    assert "commit" not in vars(scheduler) and "run" not in vars(runner)
    looped.watch()
    looped.turn()
    assert "commit" in vars(scheduler) and "run" in vars(runner) and len(looped.looks) == 1
    looped.watch(on=False)
    looped.turn(30)
    assert "commit" not in vars(scheduler) and "run" not in vars(runner) and len(looped.looks) == 1


def test_looks_are_at_most_ten_times_a_second_and_a_two_hundredth_of_the_time():
    view = Watching(Looped().simulation.engine, lambda *_: 0)
    view.shown(100.0, 1e-4)
    assert [round(view.wait(now), 9) for now in (100.0, 100.05, 101.0)] == [0.1, 0.05, 0.0]
    view.shown(100.0, 2e-3)
    assert abs(view.wait(100.0) - 0.4) < 1e-9


def test_a_resting_engine_shows_its_last_state_and_then_rests():
    looped = Looped(requests=1, answer=(3, 3))
    looped.watch()
    thread = threading.Thread(target=looped.loop.run)
    thread.start()
    try:
        assert eventually(lambda: looped.looks and not looped.looks[-1].handles and looped.looks[0].handles)
        seen = len(looped.looks)
        time.sleep(0.3)
        assert len(looped.looks) == seen, "nothing happens, and nothing is shown"
    finally:
        looped.commands.put(Stop())
        thread.join(10)


def test_looks_add_up_to_the_pool_whatever_happens_between_them():
    looped = Looped(batch=8, requests=40, pages=60, answer=(5, 60))
    looped.watch()
    picture, pool = Picture(), looped.simulation.engine.scheduler.cache.pool
    while not picture.began or looped.posted[-2].busy:
        looped.look_each_turn(1)
        picture.read(looped.posted[-1])
        assert (picture.pages == pool.states()).all()
    whole = [look.whole for look in looped.looks]
    assert whole[0] and not all(whole), "later looks are changes"
    steps = np.frombuffer(b"".join(look.steps for look in looped.looks), np.int64).reshape(-1, len(STEP)).tolist()
    assert [step[0] for step in steps] == list(range(len(steps)))
    admitted, ended = (sum(step[STEP.index(name)] for step in steps) for name in ("admitted", "ended"))
    assert ended == 40 and admitted == 40 + sum(step[STEP.index("preempted")] for step in steps)


def test_a_change_that_is_longer_than_the_whole_is_sent_whole():
    view = Watching(Looped(pages=240).simulation.engine, lambda *_: 0)
    view.look(0.0)
    pool = view._pool
    pages = pool.take(240)
    pool.drop(*pages[::2])
    found = view.look(1.0)
    assert found.whole and len(found.pages) == 240
    pool.drop(pages[1])
    found = view.look(2.0)
    assert not found.whole and len(found.pages) == 12


def test_what_grows_with_clients_is_bounded():
    looped = Looped(batch=4, requests=300)
    looped.watch()
    looped.turn(2)
    look = looped.looks[-1]
    assert look.waiting == 296 and len(look.queue) == MOST_QUEUED * 3 * 8 and len(look.handles) == 4 * 8
    nodes = looped.simulation.engine.scheduler.cache.largest_nodes(MOST_NODES)
    assert nodes is None or len(nodes) <= MOST_NODES
    looped.turn(2000)  # without a look
    looped.look_each_turn(1)
    assert len(looped.looks[-1].steps) <= KEPT_STEPS * len(STEP) * 8


def test_a_look_at_the_largest_pool_fits_a_frame_many_times():
    (message,) = hello_and_messages().feed(frame(Watched(1, 300_000, 16, True, bytes(300_000), tree=None)))
    assert isinstance(message, Watched) and len(message.pages) == 300_000
    assert 10 * len(frame(message)) < LARGEST_FRAME


def test_a_cancelled_request_ends_in_the_events():
    looped = Looped(requests=2)
    looped.watch()
    looped.turn(3)
    looped.commands.put(Cancel(1, "cancelled"))
    looped.look_each_turn(2)
    events = [np.frombuffer(look.events, np.int64).reshape(-1, 3) for look in looped.looks]
    happened = [(int(kind), int(handle)) for each in events for _, kind, handle in each]
    assert sorted(happened[:2]) == [(0, 0), (0, 1)] and happened[2:] == [(1, 1)]


def test_watching_again_begins_with_everything():
    looped = Looped(requests=2)
    looped.watch()
    looped.look_each_turn(3)
    looped.watch()  # another watcher of a front end that has lost count
    looped.look_each_turn(2)
    assert looped.looks[-2].whole and "commit" in vars(looped.simulation.engine.scheduler)
    looped.watch(on=False)
    looped.turn()
    assert "commit" not in vars(looped.simulation.engine.scheduler)


def test_coming_and_going_again_and_again_gets_no_more_looks():
    looped = Looped(requests=2)
    began = time.monotonic()
    for _ in range(200):
        looped.watch()
        looped.turn()
        looped.watch(on=False)
        looped.turn()
    assert len(looped.looks) <= 1 + 10 * (time.monotonic() - began) + 1


def test_a_result_under_way_when_watching_begins_or_ends_is_committed():
    simulation = Simulation(4, 320)
    engine = simulation.engine
    engine.lag = 1
    for request in short_requests(4, 32, (20, 20)):
        engine.submit(request)
    engine.step()
    view = Watching(engine, lambda *_: 0)
    for _ in range(3):
        engine.step()
    assert len(view.look(0.0).steps) == 2 * len(STEP) * 8, "the step before was launched unseen, one is under way"
    view.stop()
    while engine.has_work:
        engine.step()
    engine.check()


class Finished:
    """A result as a CPU's runner gives it: nothing is under way."""

    rows, landing = 1, None

    def get(self):
        return object()


class Flying(Finished):
    landing = object()


@pytest.mark.parametrize("result", [Finished, Flying])
def test_a_cpu_has_done_a_step_when_it_is_launched(result):
    step = UnderWay(result(), (0, 0, 0))
    time.sleep(0.01)
    step.get()
    waited = step.ready - step.launched
    assert waited == 0 if result is Finished else waited >= 10_000
