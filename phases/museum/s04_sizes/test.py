"""Every batch that the engine admits is one launch, from graphs that are few, small and recorded at the start."""

from typing import Any

MOST = (1, 2, 3, 5, 8, 12, 16, 20, 31, 33)


def test_tokens_are_those_of_the_model_in_every_batch(engine: Any) -> None:
    for most in MOST:
        runs = engine.Engine(engine.Device(most), most)
        for users in range(1, most + 1):
            said, right = runs.step(list(range(users))), model(engine, users)
            assert said == right, f"{users} users of {most} got {len(said)} tokens: {said}, where {right} are right"


def test_a_batch_between_two_sizes_is_one_launch(engine: Any) -> None:
    launches = [launched(engine, 16, users) for users in range(1, 17)]
    assert launches == [1] * 16, f"with 1 to 16 users of 16, a step launches {launches} times"


def test_the_largest_batches_are_one_launch(engine: Any) -> None:
    for most in MOST:
        launches = {users: launched(engine, most, users) for users in range(max(1, most - 7), most + 1)}
        slow = {users: count for users, count in launches.items() if count != 1}
        assert not slow, f"in an engine for {most}, launches per step by the number of users: {slow}"


def test_graphs_are_few(engine: Any) -> None:
    for most in MOST:
        device = watched(engine, most)
        engine.Engine(device, most)
        limit = 4 + most // 8
        assert len(device.recorded) <= limit, f"an engine for {most} users has graphs of {device.recorded} rows"


def test_no_graph_is_recorded_while_users_wait(engine: Any) -> None:
    device = watched(engine, 20)
    runs = engine.Engine(device, 20)
    first = len(device.recorded)
    for users in range(1, 21):
        runs.step(list(range(users)))
    late = device.recorded[first:]
    assert not late, f"graphs of {late} rows were recorded in a step"


def test_padding_is_less_than_eight_rows(engine: Any) -> None:
    for most in MOST:
        device = watched(engine, most)
        runs = engine.Engine(device, most)
        for users in range(1, most + 1):
            runs.step(list(range(users)))
            assert device.ran < users + 8, f"{users} users of {most} ran as {device.ran} rows"


def model(engine: Any, users: int) -> list[int]:
    tokens = list(range(users))
    for kernel in engine.MODEL:
        tokens = kernel(tokens)
    return tokens


def watched(engine: Any, rows: int) -> Any:
    """A device that counts: launches, rows of each graph recorded, and rows of the last launch."""

    class Watched(engine.Device):
        launches = ran = 0

        def record(self, kernels: list[Any], rows: int) -> Any:
            self.recorded = [*getattr(self, "recorded", []), rows]
            return super().record(kernels, rows)

        def launch(self, kernels: list[Any], rows: list[int]) -> Any:
            self.launches += 1
            self.ran = len(rows)
            return super().launch(kernels, rows)

    return Watched(rows)


def launched(engine: Any, most: int, users: int) -> int:
    """Launches of one step."""
    device = watched(engine, most)
    runs = engine.Engine(device, most)
    before = device.launches
    runs.step(list(range(users)))
    return device.launches - before
