"""A step reads what the host planned for it, however late the device is, and the host does not wait."""

from typing import Any


def test_a_device_that_keeps_up_says_everything(engine: Any) -> None:
    assert engine.Engine(engine.Device(busy=0)).generate(6) == engine.TEXTS


def test_a_device_that_lags_says_the_same(engine: Any) -> None:
    for busy in (1, 2, 4, 9, 12):
        said = engine.Engine(engine.Device(busy)).generate(6)
        assert said == engine.TEXTS, f"{busy} pieces of work behind, the device says {said}"


def test_the_host_does_not_wait_for_the_device(engine: Any) -> None:
    device = engine.Device(busy=4)
    catch_up, waited = device.catch_up, []

    def watched(behind: int = 0) -> None:
        waited.append(behind)
        catch_up(behind)

    device.catch_up = watched
    engine.Engine(device).generate(6)
    assert waited.count(0) == 1, f"the host waited for an idle device {waited.count(0)} times, where once is enough"
