"""A GPU's identity and load, from the driver's library NVML, and the time of its kernels.

Without NVML, torch supplies what it knows.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from gradus.bench.statistics import median, significant
from gradus.device.nvml import nvml

UNTIMED_REPLAYS = 2


def describe(index: int = 0) -> dict[str, str]:
    """Name, memory, driver and state, as far as known."""
    import torch

    found = torch.cuda.get_device_properties(index)
    facts = {
        "gpu": found.name,
        "gpu memory": f"{found.total_memory / 2**30:.1f} GiB",
        "compute capability": f"{found.major}.{found.minor}",
        "multiprocessors": str(found.multi_processor_count),
        "cuda": str(torch.version.cuda),
    }
    with nvml(index) as known:
        if known is None:
            return facts | {"driver": "unknown (no NVML here)"}
        library, handle = known
        readings = {
            "driver": library.nvmlSystemGetDriverVersion,
            "power limit": lambda: f"{library.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000:.0f} W",
            "SM clock limit": lambda: f"{library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_SM)} MHz",
            "memory clock": lambda: f"{library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_MEM)} MHz",
            "temperature": lambda: f"{library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU)} °C",
            "MIG": lambda: "on" if library.nvmlDeviceGetMigMode(handle)[0] else "off",
        }
        for name, look in readings.items():
            try:
                value = look()
                facts[name] = value.decode() if isinstance(value, bytes) else value
            except library.NVMLError:  # not every card answers every question
                continue
    return facts


def graph_microseconds(launches: Sequence[Callable[[], Any]], replays: int = 5) -> float:
    """Record these launches in one CUDA graph, and return the time of one: the median of several replays.

    Each should work on its own buffers, which together exceed the L2 cache. All run once before the capture, because
    libraries initialize themselves in ways that a capture forbids.
    """
    import torch

    for launch in launches:
        launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for launch in launches:
            launch()
    times = []
    for _ in range(UNTIMED_REPLAYS + replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / len(launches))
    return median(times[UNTIMED_REPLAYS:])


@dataclass
class Utilization:
    """Samples the GPU's load in a thread while the context lasts. Empty without NVML.

    busy_percent: share of the last sampling period in which a kernel ran, as the driver counts it.
    """

    index: int = 0
    period_s: float = 0.05
    seconds: list[float] = field(default_factory=list)
    busy_percent: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    power_w: list[float] = field(default_factory=list)

    def __enter__(self) -> "Utilization":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpu utilization", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def summary(self) -> str:
        """One line for people."""
        if not self.seconds:
            return "  utilization is not known: there is no NVML here"
        busy = sum(self.busy_percent) / len(self.busy_percent)
        return (
            f"  over {self.seconds[-1]:.1f} s of prefills and decodes the GPU was busy {busy:.0f} % of the time, used "
            f"up to {max(self.memory_mb):.0f} MB and drew up to {max(self.power_w):.0f} W"
        )

    def _watch(self) -> None:
        with nvml(self.index) as known:
            if known is None:
                return
            library, handle = known
            start = time.perf_counter()
            while not self._stop.wait(self.period_s):
                self.busy_percent.append(library.nvmlDeviceGetUtilizationRates(handle).gpu)
                self.memory_mb.append(significant(library.nvmlDeviceGetMemoryInfo(handle).used / 1e6))
                self.power_w.append(significant(library.nvmlDeviceGetPowerUsage(handle) / 1e3))
                self.seconds.append(significant(time.perf_counter() - start))
