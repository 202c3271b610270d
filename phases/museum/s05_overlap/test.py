"""The words are those of one step after the other, and with a lag the host never asks about a step just launched."""

from threading import current_thread
from typing import Any

from phases.museum.s05_overlap import engine as original

STEPS = 24


def test_without_lag_the_words_are_right(engine: Any) -> None:
    said = engine.Engine(engine.Device(), lag=0).generate(STEPS)
    assert said == right(STEPS), f"the words are {' '.join(said)}, where {' '.join(right(STEPS))} are right"


def test_with_lag_the_words_are_the_same(engine: Any) -> None:
    for lag in (1, 2):
        said = engine.Engine(engine.Device(), lag).generate(STEPS)
        assert said == right(STEPS), f"with a lag of {lag}: {' '.join(said)}, where {' '.join(right(STEPS))} are right"


def test_each_word_is_looked_at_once(engine: Any) -> None:
    device = watched(engine)
    engine.Engine(device, lag=0).generate(STEPS)
    assert len(device.reads) == STEPS, f"the host asks the device {len(device.reads)} times for {STEPS} words"


def test_the_host_asks_about_a_step_once_the_next_ones_are_launched(engine: Any) -> None:
    for lag in (1, 2):
        device = watched(engine)
        engine.Engine(device, lag).generate(STEPS)
        early = [read for read in device.reads if read[1] < min(read[0] + lag, STEPS)]
        assert not early, (
            f"with a lag of {lag}, the host asks {len(early)} times for something of a step before the {lag} after it "
            f"{'is' if lag == 1 else 'are'} launched: first of step {early[0][0]}, with {early[0][1]} launched"
        )


def test_the_step_itself_runs_on_the_device(engine: Any) -> None:
    device = watched(engine)
    engine.Engine(device, lag=1).generate(STEPS)
    assert device.steps == STEPS, f"the device computed {device.steps} steps for {STEPS} words"


def right(steps: int) -> list[str]:
    """Say the words one after the other, without a device."""
    said = [0]
    for _ in range(steps):
        said = original.best(said, original.lowered(original.score(said), original.said_twice(said), said))
    return [original.WORDS[word] for word in said[1:]]


class Asked:
    """A future that notes when the host asks for it: the step that it is of, and how many steps were launched."""

    def __init__(self, future: Any, device: Any) -> None:
        self.future, self.device, self.step = future, device, device.steps

    def result(self, timeout: float | None = None) -> Any:
        self.note()
        return self.future.result(timeout)

    def done(self) -> bool:
        self.note()
        done: bool = self.future.done()
        return done

    def note(self) -> None:
        if current_thread() is self.device.host:
            self.device.reads.append((self.step, self.device.steps))


def watched(engine: Any) -> Any:
    """A device. steps: launches of the model. reads: what the host asked for, as `Asked` notes it."""

    class Watched(engine.Device):
        def __init__(self) -> None:
            super().__init__()
            self.host, self.steps = current_thread(), 0
            self.reads: list[tuple[int, int]] = []

        def run(self, kernel: Any, *inputs: Any) -> Any:
            self.steps += getattr(kernel, "__name__", "") == "score"
            promise = super().run(kernel, *inputs)
            promise.future = Asked(promise.future, self)
            return promise

    return Watched()
