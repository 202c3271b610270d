"""The final engine on the second GPU of two: nothing runs on the first, and tokens are the same."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.assembly.final import EngineConfig, build
from gradus.models.precision import resolve_device
from tests.gpu.test_graphs import oracle
from tests.gpu.test_phases import model_on, requests
from tests.phases.conftest import limits_of
from tests.phases.drive import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.mark.quick
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-qwen3"])
def test_an_engine_on_the_second_gpu_gives_the_cpus_tokens_and_leaves_the_first_alone(shape, graphs):
    before = torch.cuda.memory_allocated("cuda:0")
    model = model_on("cuda:1", shape, torch.float32)
    engine = build(model, EngineConfig(limits_of(shape), max_sequences=3, graphs=graphs))
    assert run(engine, requests(shape)) == oracle(shape, requests(shape))
    assert torch.cuda.memory_allocated("cuda:0") == before
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("settings", [{}, {"graphs": False}, {"speculate": "ngram"}, {"kernels": False}])
def test_an_engine_on_the_current_gpu_stays_there_when_another_becomes_current(settings):
    """`device="cuda"` is a GPU for good: every copy, launch and event of a later step goes there."""
    shape = "tiny-qwen3"
    assert resolve_device("cuda") == torch.device("cuda:0")
    model = model_on("cuda", shape, torch.float32)
    assert model.device == torch.device("cuda:0")
    config = EngineConfig(limits_of(shape), max_sequences=3, **{"graphs": settings.get("kernels", True), **settings})
    engine = build(model, config)
    before = torch.cuda.memory_allocated("cuda:1")
    torch.cuda.set_device(1)
    try:
        assert run(engine, requests(shape)) == oracle(shape, requests(shape))
        assert torch.cuda.current_device() == 1
        assert torch.cuda.memory_allocated("cuda:1") == before
    finally:
        torch.cuda.set_device(0)
    with torch.cuda.device(1):
        assert run(engine, requests(shape)) == oracle(shape, requests(shape))
