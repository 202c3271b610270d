"""transformers as a contender: the same shape, the same weights, the same work."""

from dataclasses import replace

import pytest
import torch

from gradus.bench.contenders.transformers import build_model
from gradus.bench.contenders.workbench import Room
from gradus.bench.workloads import burst
from gradus.loading import Checkpoint
from gradus.models import SHAPES, create_model, load_weights, read_config, write_config
from tests.models.conftest import InMemory
from tests.phases.conftest import NaiveAttention

WINDOWS = [replace(SHAPES[shape], windows=(None, 16, None, 16)) for shape in ("tiny-qwen2", "tiny-qwen3")]


@pytest.mark.parametrize("config", [*SHAPES.values(), *WINDOWS], ids=[*SHAPES, "windows", "more windows"])
def test_a_configuration_survives_the_way_there_and_back(config):
    assert read_config(write_config(config)) == config


@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"])
def test_the_peer_computes_with_the_checkpoints_weights(shape):
    """The same tensors, loaded by us and by the peer, give the same logits."""
    config = SHAPES[shape]
    empty = Checkpoint(shape, None, config, None, None, None, 0)
    torch.manual_seed(0)
    source = build_model(empty, config, torch.float32, torch.device("cpu"))
    for parameter in source.parameters():
        parameter.data.normal_(0.5 if parameter.dim() == 1 else 0.0, 0.1)
    tensors = InMemory({name: value.detach() for name, value in source.named_parameters()})
    peer = build_model(
        Checkpoint(shape, None, config, tensors, None, None, 0), config, torch.float32, torch.device("cpu")
    )
    ours = create_model(config)
    load_weights(ours, tensors)
    tokens = [3, 141, 59, 26, 53]
    with torch.inference_mode():
        expected = ours.logits(ours(torch.tensor(tokens), torch.arange(5), NaiveAttention(ours)))
        found = peer(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("process")  # transformers asks psutil for memory
@pytest.mark.parametrize("name", ["transformers", "transformers-batch"])
def test_a_peer_does_the_same_work_and_every_token_is_timed(bench, name):
    work = burst(2, (4, 8), (3, 5))
    peer = bench.contender(name, Room(work.longest, 2))
    peer.build()
    run = peer.run(work.arrivals(320))
    peer.close()
    assert [len(times) for times in run.token_times] == [job.output for job in work.jobs]
    assert all(times == sorted(times) and times[0] > 0 for times in run.token_times)
