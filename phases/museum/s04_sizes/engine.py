"""Decode steps replayed from graphs: one launch for a whole step, where eager execution launches every kernel.

A graph is recorded for one number of rows, before the first request. A step takes the smallest graph that holds its
batch, and pads. If there is none, it runs eagerly. The "model" is a chain of kernels that turn a token into the next.

The server was sized for 20 users. With 16 it was fast; from the 17th on, every one of them waited many times as long.
"""

from collections.abc import Callable
from time import perf_counter

Kernel = Callable[[list[int]], list[int]]
LAUNCH = 500  # turns of an empty loop, some 10 µs: what the host needs to start a kernel, or a graph


def kernel(number: int) -> Kernel:
    return lambda rows: [(row * (2 * number + 3) + number) % 50_021 for row in rows]


MODEL = [kernel(number) for number in range(200)]


class Device:
    """Has memory for `rows` rows. There is no driver here, so `launch` spends the time that one would take."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def record(self, kernels: list[Kernel], rows: int) -> list[Kernel]:
        """Record a graph for exactly this number of rows. Raises MemoryError if the device has no room for them."""
        if rows > self.rows:
            raise MemoryError(f"a graph of {rows} rows, on a device with memory for {self.rows}")
        return list(kernels)

    def launch(self, kernels: list[Kernel], rows: list[int]) -> list[int]:
        """Start a kernel, or all kernels of a graph, on these rows."""
        for _ in range(LAUNCH):
            pass
        for one in kernels:
            rows = one(rows)
        return rows


class Engine:
    """Serves up to `most` sequences at once, one token of each in a step."""

    def __init__(self, device: Device, most: int) -> None:
        self.device = device
        self.graphs = {rows: device.record(MODEL, rows) for rows in self.sizes(most)}

    def sizes(self, most: int) -> list[int]:
        """The numbers of rows to record: few, since each graph takes memory and time at the start."""
        return [rows for rows in (1, 2, 4, *range(8, most + 1, 8)) if rows <= most]

    def step(self, tokens: list[int]) -> list[int]:
        """Turn the newest token of each sequence into its next one."""
        size = next((size for size in self.graphs if size >= len(tokens)), None)
        if size is not None:
            padding = [0] * (size - len(tokens))
            return self.device.launch(self.graphs[size], tokens + padding)[: len(tokens)]
        for one in MODEL:
            tokens = self.device.launch([one], tokens)
        return tokens


def show() -> None:
    engine = Engine(Device(rows=20), most=20)
    print(f"{'users':<10}{'ms per step':>12}")
    for users in (1, 8, 16, 17, 20):
        tokens, start = list(range(users)), perf_counter()
        for _ in range(50):
            tokens = engine.step(tokens)
        print(f"{users:<10}{(perf_counter() - start) * 20:>12.2f}")


if __name__ == "__main__":
    show()
