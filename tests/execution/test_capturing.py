"""What captured steps share, without a GPU: where numbers arrive, and in which order graphs are recorded and raced."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gradus.device.transfer import BUFFERS
from gradus.execution.gpu import capturing
from gradus.execution.gpu.capturing import REPLAYS, ROUNDS, Inputs, Recorder

CPU = torch.device("cpu")


def test_inputs_arrive_at_one_address_with_padding_behind_them():
    inputs = Inputs(2, 4, CPU)
    address = inputs.values.data_ptr()
    inputs.send(4, ([7, 8, 9], 4), ([1, 2, 3], 0))
    assert inputs.values.tolist() == [[7, 8, 9, 4], [1, 2, 3, 0]]
    for number in range(2 * BUFFERS):
        inputs.send(2, ([number], 4), ([number + 1], 0))
        assert inputs.values[:, :2].tolist() == [[number, 4], [number + 1, 0]]
    inputs.send(4, ([], 4), ([], 0))
    assert inputs.values.tolist() == [[4] * 4, [0] * 4] and inputs.values.data_ptr() == address


def test_what_was_sent_last_is_not_sent_again():
    inputs, slots, limits = Inputs(2, 4, CPU), np.array([2, 5]), np.array([9, 9])
    inputs.send(2, (slots, 4), (limits, 0))
    inputs.values.zero_()
    inputs.send(2, (slots, 4), (limits, 0))
    assert not inputs.values.any()
    for size, more in ((4, limits), (2, limits), (2, np.array([9, 10]))):  # each differs from the one before
        inputs.send(size, (slots, 4), (more, 0))
        assert inputs.values[:, :2].tolist() == [[2, 5], more.tolist()]
        inputs.values.zero_()


class FakeGraphs:
    """In torch.cuda's place: notes what happens. ms: of a replay, by the number of the graph."""

    def __init__(self, monkeypatch, ms: dict[int, float]) -> None:
        self.ms, self.log, self.clock, self.made = ms, [], 0.0, 0
        cuda = capturing.torch.cuda
        monkeypatch.setattr(cuda, "CUDAGraph", self.graph)
        monkeypatch.setattr(cuda, "graph", self.recording)
        monkeypatch.setattr(cuda, "graph_pool_handle", lambda: "pool")
        monkeypatch.setattr(cuda, "Stream", lambda device: f"stream of {device}")
        monkeypatch.setattr(cuda, "synchronize", lambda device: self.log.append("wait"))
        monkeypatch.setattr(cuda, "Event", lambda enable_timing: self.event())
        monkeypatch.setattr(capturing, "capability", lambda device: SimpleNamespace(starts_early=True))

    def graph(self) -> SimpleNamespace:
        number, self.made = self.made, self.made + 1

        def replay() -> None:
            self.clock += self.ms[number]
            self.log.append(f"replay {number}")

        return SimpleNamespace(number=number, replay=replay)

    @contextmanager
    def recording(self, graph, pool, stream, capture_error_mode):
        assert pool == "pool"
        assert stream == f"stream of {CPU}", "torch's own is on the GPU that captured first in this process"
        assert capture_error_mode == "thread_local", "another thread that allocates would end the recording"
        self.log.append(f"record {graph.number}")
        yield

    def event(self) -> SimpleNamespace:
        event = SimpleNamespace(synchronize=lambda: None, at=0.0)
        event.record = lambda: setattr(event, "at", self.clock)
        event.elapsed_time = lambda later: later.at - event.at
        return event

    def step(self, early: bool, asked: bool) -> tuple[bool, bool]:
        self.log.append(f"step{' early' * early}{' asked' * asked}")
        return early, asked


@pytest.mark.parametrize(("ms", "early"), [({0: 1.0, 1: 2.0}, False), ({0: 2.0, 1: 1.0}, True)])
def test_small_steps_are_recorded_both_ways_and_the_faster_one_stays(monkeypatch, ms, early):
    fake = FakeGraphs(monkeypatch, ms)
    plain, asked = Recorder(CPU).both(64, fake.step)
    assert (plain.early, plain.result, asked.result) == (early, (early, False), (early, True))
    said = [entry for entry in fake.log if not entry.startswith("replay")]
    last = "step early asked" if early else "step asked"
    assert said[:8] == ["step", "wait", "record 0", "step", "step early", "wait", "record 1", "step early"]
    assert said[8:] == [last, "wait", "record 2", last]
    assert len(fake.log) - len(said) == 2 * ROUNDS * REPLAYS
    fake.log.clear()
    assert plain.replay() == (early, False) and fake.log == [f"replay {int(early)}"]


def test_large_steps_are_recorded_one_way(monkeypatch):
    fake = FakeGraphs(monkeypatch, {})
    plain, asked = Recorder(CPU).both(65, fake.step)
    assert not plain.early and not asked.early
    assert fake.log == ["step", "wait", "record 0", "step", "step asked", "wait", "record 1", "step asked"]


@pytest.mark.parametrize("cached", [0, 256], ids=["nothing cached", "more cached than graphs take"])
def test_the_log_says_how_many_were_recorded_in_how_much_memory(monkeypatch, caplog, cached):
    """Torch empties its cache as a capture begins, so all that it reserves may shrink while graphs are recorded."""
    fake = FakeGraphs(monkeypatch, {})
    mib = {"in use": 100, "cached": cached}
    monkeypatch.setattr(capturing.torch.cuda, "memory_reserved", lambda device: sum(mib.values()) << 20)
    monkeypatch.setattr(capturing.torch.cuda, "empty_cache", lambda: mib.update(cached=0))
    recorder = Recorder(CPU)
    with caplog.at_level("INFO"), recorder.counting():
        recorder.both(65, fake.step)
        mib |= {"in use": 105, "cached": 3}  # of the last step that ran
    assert "captured 2 CUDA graphs in 5 MiB" in caplog.text
