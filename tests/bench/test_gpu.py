"""Measurements that need a GPU: its memory and its clock."""

import pytest

from gradus.bench.contenders.workbench import Room, Workbench
from gradus.bench.measure import fingerprint
from gradus.bench.measure.drive import drive
from gradus.bench.measure.idle import idle_watch
from gradus.bench.run.profiler import profile_steps
from gradus.bench.workloads import burst
from gradus.models.precision import resolve_device


@pytest.mark.gpu
def test_a_gpu_is_measured_with_its_own_memory_and_kernels():
    device = resolve_device("cuda")
    assert fingerprint.fingerprint(device, quick=True)["hardware"]["gpu"]
    bench = Workbench.open("random:tiny-llama", "cuda", "float32")
    work = burst(2, 8, 4)
    contender = bench.contender("p03", Room(work.longest, 2))
    contender.build()
    run = contender.run(work.arrivals(320))
    contender.close()
    assert bench.weight_bytes < run.peak_bytes < bench.weight_bytes + (64 << 20)
    found = profile_steps(bench, "p01", context=16)
    assert found.device_ms > 0 and found.kernels > 10


@pytest.mark.gpu
def test_the_gpu_is_asked_whether_it_waited():
    bench = Workbench.open("random:tiny-llama", "cuda", "float32")
    engine = bench.engine("final", Room(40, 4))
    runner = engine.runner
    with idle_watch(engine) as watch:
        drive(engine, burst(4, 8, 20).arrivals(320), bench.device)
    waits = watch.idle_us()
    assert len(waits) >= 15 and all(0 <= wait < 1e6 for wait in waits)
    assert engine.runner is runner
