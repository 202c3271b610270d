"""The final engine on the second GPU of two: nothing runs on the first, and tokens are the same."""

import pytest
import torch

pytest.importorskip("triton")

from gradus.assembly.final import EngineConfig, build
from tests.gpu.test_graphs import oracle
from tests.gpu.test_phases import model_on, requests
from tests.phases.conftest import limits_of
from tests.phases.drive import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-qwen3"])
def test_an_engine_on_the_second_gpu_gives_the_cpus_tokens_and_leaves_the_first_alone(shape, graphs):
    before = torch.cuda.memory_allocated("cuda:0")
    model = model_on("cuda:1", shape, torch.float32)
    engine = build(model, EngineConfig(limits_of(shape), max_sequences=3, graphs=graphs))
    assert run(engine, requests(shape)) == oracle(shape, requests(shape))
    assert torch.cuda.memory_allocated("cuda:0") == before
    assert torch.cuda.current_device() == 0
