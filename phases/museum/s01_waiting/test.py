"""The most urgent request is served first, and what a step costs does not depend on how many wait."""

from time import perf_counter
from typing import Any


def test_every_request_gets_its_words(engine: Any) -> None:
    runs = engine.Engine(slots=2)
    requests = [engine.Request(name, [name, "says", "hello"]) for name in ("ann", "ben", "cy", "dee")]
    served(runs, requests)
    said = {request.name: " ".join(request.said) for request in requests}
    assert said == {name: f"{name} says hello" for name in ("ann", "ben", "cy", "dee")}, f"they got {said}"


def test_the_most_urgent_goes_first_and_among_equals_the_first_to_come(engine: Any) -> None:
    runs = engine.Engine(slots=1)
    wanted = [("a", 2), ("b", 1), ("c", 2), ("d", 0), ("e", 1), ("f", 0), ("g", 2), ("h", 1)]
    served(runs, [engine.Request(name, ["word"], priority) for name, priority in wanted])
    order = "".join(request.name for request in runs.finished)
    assert order == "dfbehacg", f"served in the order {order}, where dfbehacg is right (priorities {wanted})"


def test_an_urgent_request_passes_those_that_have_waited_long(engine: Any) -> None:
    runs = engine.Engine(slots=1)
    for name in "abc":
        runs.submit(engine.Request(name, ["one", "two"], 1))
    for _ in range(3):
        runs.step()
    runs.submit(engine.Request("urgent", ["now"], 0))
    for _ in range(10):
        runs.step()
    order = [request.name for request in runs.finished]
    assert order == ["a", "b", "urgent", "c"], f"served in the order {order}"


def test_a_client_that_hangs_up_is_not_served_and_the_others_keep_their_order(engine: Any) -> None:
    runs = engine.Engine(slots=1)
    requests = [engine.Request(str(number), ["word"], (number * 7) % 10) for number in range(40)]
    for request in requests:
        runs.submit(request)
    gone = [request for request in requests if request.priority in (0, 4, 5)]
    for request in gone:
        runs.cancel(request)
    for _ in range(40):
        runs.step()
    left = sorted((request for request in requests if request not in gone), key=lambda one: one.priority)
    order = [request.name for request in runs.finished]
    assert order == [request.name for request in left], f"served in the order {order}"


def test_a_client_that_hangs_up_leaves_its_slot(engine: Any) -> None:
    runs = engine.Engine(slots=1)
    first, second = engine.Request("a", ["word"] * 9), engine.Request("b", ["word"])
    runs.submit(first)
    runs.submit(second)
    runs.step()
    runs.cancel(first)
    runs.step()
    assert runs.finished == [second] and len(first.said) == 1, f"a said {first.said}, b said {second.said}"


def test_a_step_looks_at_no_more_requests_when_more_wait(engine: Any) -> None:
    few, many = (looks(engine, waiting) for waiting in (100, 2_000))
    assert many < 3 * few + 50, f"{few:.0f} reads of requests per step while 100 wait, {many:.0f} while 2,000 do"


def test_a_step_takes_no_longer_when_more_wait(engine: Any) -> None:
    few, many = (min(seconds(engine, waiting)) for waiting in (100, 6_000))
    assert many < 10 * few, f"with 6,000 that wait, a step takes {many / few:.0f} times as long as with 100"


def served(runs: Any, requests: list[Any]) -> None:
    for request in requests:
        runs.submit(request)
    while len(runs.finished) < len(requests):
        runs.step()


def looks(engine: Any, waiting: int) -> float:
    """Reads of any field of any request in a step, in which one request ends and one arrives."""
    count = 0

    class Watched(engine.Request):
        def __getattribute__(self, name: str) -> Any:
            nonlocal count
            count += 1
            return super().__getattribute__(name)

    runs = engine.Engine(slots=1)
    for number in range(waiting):
        runs.submit(Watched(str(number), ["word"], number % 5))
    count = 0
    for number in range(20):
        runs.submit(Watched(f"new {number}", ["word"], number % 5))
        runs.step()
    return count / 20


def seconds(engine: Any, waiting: int) -> list[float]:
    """How long each of a few steps took; the shortest is the one that nothing interrupted."""
    runs = engine.Engine(slots=8)
    for number in range(waiting):
        runs.submit(engine.Request(str(number), ["word"] * (1 + number % 3), number % 5))
    times = []
    for _ in range(12):
        start = perf_counter()
        runs.step()
        times.append(perf_counter() - start)
    return times
