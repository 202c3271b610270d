"""Two engines on one GPU, stepped by two threads on two streams at once: each gives the tokens that it gives alone."""

import threading
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.assembly.final import EngineConfig, build
from gradus.engine.request import ModelLimits
from gradus.models import create_model, randomize
from gradus.models.layers import Linear
from gradus.models.shapes import SHAPES
from gradus.quantization.mix import Mix, factory
from tests.gpu.test_phases import requests
from tests.phases.drive import run

pytestmark = pytest.mark.gpu

# wide enough for programs to share the sums of few rows
WIDE = replace(SHAPES["tiny-llama"], hidden_size=512, intermediate_size=2048, num_heads=8, num_kv_heads=2, head_dim=64)


@pytest.mark.quick
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("quantize", [None, "int4"])
def test_two_engines_on_two_streams_share_a_model_and_nothing_else(quantize, graphs):
    linear = Linear if quantize is None else factory(Mix.of(quantize), WIDE, Linear)
    model = create_model(WIDE, dtype=torch.bfloat16, device="cuda", linear=linear)
    randomize(model, seed=0, std=0.05)
    limits = ModelLimits(WIDE.vocab_size, 64)
    engines = [build(model, EngineConfig(limits, max_sequences=3, graphs=graphs, prefix_cache=False)) for _ in range(2)]
    wanted = requests("tiny-llama")
    expected = [run(engine, wanted) for engine in engines]
    torch.cuda.synchronize()
    found, together = [[], []], threading.Barrier(2)

    def often(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            together.wait(60)
            for _ in range(5):
                found[number].append(run(engines[number], wanted))
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=often, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [[each] * 5 for each in expected]


@pytest.mark.plans_memory
def test_another_thread_that_allocates_does_not_end_the_recording_of_graphs():
    model = create_model(WIDE, dtype=torch.bfloat16, device="cuda")
    randomize(model, seed=0, std=0.05)
    over, kept = threading.Event(), []

    def allocate() -> None:
        """Blocks of 32 MiB that torch asks the driver for, up to 4 GiB, and work on a stream of this thread's own."""
        with torch.cuda.stream(torch.cuda.Stream()):
            while not over.wait(0.01):
                if len(kept) < 128:
                    kept.append(torch.empty(32 << 20, dtype=torch.uint8, device="cuda"))
                kept[-1].fill_(1)

    other = threading.Thread(target=allocate)
    other.start()
    try:
        engine = build(model, EngineConfig(ModelLimits(WIDE.vocab_size, 64), max_sequences=3, memory_fraction=0.3))
    finally:
        over.set()
        other.join()
    assert kept and run(engine, requests("tiny-llama"))
