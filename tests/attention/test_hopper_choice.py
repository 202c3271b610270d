"""Which prompts take the kernel that was written for Hopper: those that it was faster with, on the GPU that has it."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.attention import triton_paged
from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.graph_paged import GraphPagedAttention
from gradus.attention.paged import block_tables
from gradus.attention.storage import PagedStorage
from gradus.attention.tiles import kinds_of
from gradus.attention.triton_paged import TritonPagedAttention, hopper_layers, hopper_prompts, widened_bytes
from gradus.device.capability import Capability
from gradus.execution.gpu.warm_up import warm_up
from gradus.kernels.attention.launch import HOPPER_LAUNCHES
from gradus.kernels.core import gluon
from gradus.models.config import LayerSizes, ModelConfig
from gradus.models.shapes import SHAPES
from tests.kernels.ahead_of_time import EVERY, H200

RACE = Path(__file__).parents[2] / "benchmarks" / "answered" / "prompt_attention.json"
LLAMA = SHAPES["llama-3.1-8b"].stage(range(1))
NOISE = 1.16  # between runs of one kernel: the GPU is at its limit of power, and its clock falls


@pytest.fixture
def on_an_h200(monkeypatch):
    monkeypatch.setattr(triton_paged, "capability", lambda device: H200)
    monkeypatch.setattr(triton_paged, "multiprocessors", lambda device: 132)


def suits(config: ModelConfig = LLAMA, able: Capability = H200, page_size: int = 16, dtype=torch.bfloat16) -> bool:
    return bool(hopper_layers(config, dtype, page_size, able, eight_bits=False))


def test_only_what_the_kernel_was_written_for_takes_it():
    assert suits()
    assert [able for able in EVERY if suits(able=able)] == [H200]
    assert not suits(dtype=torch.float16) and not suits(dtype=torch.float32)
    assert not suits(page_size=32)
    assert not suits(replace(LLAMA, attention_softcap=30.0))
    assert not suits(replace(LLAMA, head_dim=96)) and not suits(replace(LLAMA, num_heads=24))
    assert not suits(replace(LLAMA, windows=(127,)))


def test_layers_take_it_by_their_heads_and_windows():
    def launch(**changed):
        config = replace(LLAMA, **changed)
        storage = PagedStorage(config, 1, 16, torch.bfloat16, torch.device("cpu"))
        tiles, window = kinds_of(config, storage, 132, H200)[0]
        found = tiles.hopper(window)
        return None if found is None else found.head_dim

    assert launch() == launch(num_kv_heads=32) == launch(num_kv_heads=1) == 128
    assert [launch(head_dim=width) for width in (64, 80, 96, 256, 512)] == [64, None, None, 256, None]
    assert launch(num_heads=56) == 128, "seven heads to a key head leave an eighth of a tile empty"
    assert launch(num_heads=24) is None, "three leave a quarter"
    assert launch(windows=(128,)) == 128 and launch(windows=(127,)) is None, "nearly all of whose scores are masked"
    assert launch(head_dim=64, windows=(1024,)) == 64 and launch(head_dim=64, windows=(1023,)) is None


def test_layers_may_differ():
    sizes = LayerSizes(8, 128, 14336), LayerSizes(8, 512, 14336), LayerSizes(8, 256, 14336)
    config = replace(SHAPES["llama-3.1-8b"].stage(range(3)), sizes=sizes)
    storage = PagedStorage(config, 1, 16, torch.bfloat16, torch.device("cpu"))
    found = [tiles.hopper(window) for tiles, window in kinds_of(config, storage, 132, H200)]
    assert [each and each.head_dim for each in found] == [128, None, 256]


NARROW = replace(LLAMA, num_kv_heads=1, num_heads=4, head_dim=64)  # little memory


@pytest.mark.parametrize(
    ("changed", "widens"),
    [
        ({}, True),
        ({"head_dim": 128}, True),
        ({"head_dim": 96}, False),
        ({"num_heads": 3}, False),
        ({"windows": (1023,)}, False),
        ({"attention_softcap": 30.0}, False),
        ({"sizes": (LayerSizes(1, 64, 14336),)}, False),
    ],
)
@pytest.mark.usefixtures("on_an_h200")
def test_keys_in_8_bits_have_memory_to_be_widened_into_where_a_layer_takes_it(changed, widens):
    """Exactly as much as is planned, and none without such a layer."""
    config, cpu = replace(NARROW, **changed), torch.device("cpu")
    storage = Fp8Storage(config, 1, 16, torch.bfloat16, cpu)
    hopper = TritonPagedAttention(config, storage, 2, block_tables(storage, 2, 1000)).hopper
    planned = widened_bytes(config, torch.bfloat16, 16, H200, 1000)
    assert planned == (hopper.pages.nbytes if widens else 0) and widens == (hopper is not None)
    assert planned == widens * 2 * 63 * 16 * config.head_dim * 2


def counts_of(step: str) -> list[int]:
    """Of "4 x 2048", or "2048 at 8192"."""
    spans, _, count = step.partition(" x ")
    return [int(count)] * int(spans) if count else [int(step.split()[0])]


def test_the_rule_chooses_what_won_the_race():
    """But where the two differ by as much as runs of one of them do. One step takes the slower kernel by more: a chunk
    of 1,024 tokens with a window of 4,096, whose tiles fill two thirds of their rounds, as those that lose without one.
    """
    race, taken = json.loads(RACE.read_text()), defaultdict(dict)
    for row in race["rows"]:
        taken[row["head_dim"], row["window"], row["step"]][row["kernel"]] = row["ms"]
    lost = {}
    for (head_dim, window, step), ms in taken.items():
        shape, launch = race["shapes"][str(head_dim)], HOPPER_LAUNCHES[head_dim]
        group = shape["heads"] // shape["kv_heads"]
        chosen = launch.suits(group, window) and launch.fills(counts_of(step), group, shape["kv_heads"], 132)
        lost[head_dim, window, step] = ms["hopper_attention" if chosen else "paged_attention"] / min(ms.values())
    assert len(lost) > 100 and sum(lost.values()) / len(lost) < 1.01
    assert [each for each, times in lost.items() if times > NOISE] == [(128, 4096, "1024 at 98976")]


def test_a_long_prompt_among_short_ones_decides_and_one_too_small_for_the_gpu_does_not():
    launch = HOPPER_LAUNCHES[64]
    assert launch.fills([8192] + [100] * 20, 4, 8, 132)
    assert not launch.fills([1600] + [600] * 20, 4, 8, 132)
    assert launch.fills([1536], 4, 8, 132) and not launch.fills([1536], 4, 2, 132)


def attention_of(config: ModelConfig) -> GraphPagedAttention:
    config = replace(config, context_length=16)
    return GraphPagedAttention(config, PagedStorage(config, 1, 16, torch.bfloat16, torch.device("cpu")), slots=3)


@pytest.mark.usefixtures("on_an_h200")
def test_each_kind_of_layers_has_a_prompt_that_takes_it_if_any_does():
    config = SHAPES["llama-3.1-8b"].stage(range(2))
    assert attention_of(config).shortest_on_hopper(8192) == {625}  # 14 tiles of 48 tokens, 8 heads: 112 of 132
    assert attention_of(config).shortest_on_hopper(624) == set()
    assert attention_of(replace(config, num_heads=24)).shortest_on_hopper(8192) == set()
    config = replace(config, sizes=(LayerSizes(8, 128, 14336), LayerSizes(8, 64, 14336)))
    assert attention_of(config).shortest_on_hopper(8192) == {625, 1536}
    assert attention_of(replace(config, windows=(None, 512))).shortest_on_hopper(8192) == {625}


@pytest.mark.usefixtures("on_an_h200")
def test_it_is_compiled_before_the_first_request_even_where_the_longest_prompt_does_not_take_it(monkeypatch):
    """Compiling it takes seconds. Steps of up to 1,024 tokens have 22 tiles, so the second of two rounds idles."""
    attention, run = attention_of(LLAMA), list[list[int]]()
    launch = HOPPER_LAUNCHES[128]
    monkeypatch.setattr(attention, "prepare", lambda batch: run.append(batch.counts))
    monkeypatch.setattr(attention, "write_entries", lambda numbers: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    model = SimpleNamespace(config=LLAMA, device=torch.device("cpu"), logits=lambda hidden: hidden)
    sampler = SimpleNamespace(draw_slots=lambda *inputs, full: None)
    warm_up(model, lambda ids, *_: torch.zeros(len(ids), 1), attention, sampler, most=1024, crowd=2)
    assert [1024] in run and not launch.fills([1024], 4, 8, 132)
    assert any(launch.fills(counts, 4, 8, 132) for counts in run)


def test_another_gluon_is_no_failure(monkeypatch):
    def without(name: str) -> object:
        raise ImportError(f"no gluon for {name}")

    monkeypatch.setattr(gluon, "import_module", without)
    assert hopper_prompts({0: None}, 132) is None
