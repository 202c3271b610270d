"""The ranks' parts are the whole model, with the same bits on every rank. Here ranks are threads of this process."""

import threading
from dataclasses import replace
from itertools import groupby, product

import pytest
import torch

from gradus.assembly.parallel import for_each_rank
from gradus.config.options import EngineConfig
from gradus.errors import ConfigError
from gradus.loading import load_model, open_checkpoint
from gradus.models import SHAPES, create_model
from gradus.models.weights import plan
from gradus.parallel.model import load_part
from gradus.parallel.place import Place
from gradus.parallel.slices import cut_of
from tests.loading.builders import write_folder
from tests.models.conftest import NaiveAttention
from tests.pairwise import first
from tests.phases.conftest import limits_of

FAMILIES = (
    *("tiny-gpt2", "tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3", "tiny-gemma4"),
    *("tiny-smollm3", "tiny-ministral3", "tiny-phi3", "tiny-olmo2", "tiny-olmo3", "tiny-granite", "tiny-granite4"),
    *("tiny-mixtral", "tiny-qwen2-moe", "tiny-qwen3-moe", "tiny-olmoe", "tiny-granite-moe", "tiny-gemma4-moe"),
    *("tiny-gpt-oss", "tiny-glm4-moe"),
)
PLACES = ((4, 1), (2, 2), (2, 1), (1, 2))  # the first two have what the others have: `make stress` runs those
CPU = torch.device("cpu")
PLACE = Place(0)


def on_all_ranks(compute, count):
    """compute(rank) on a thread for each rank; their results."""
    results = [None] * count

    def run(rank):
        with torch.inference_mode():
            try:
                results[rank] = compute(rank)
            except Exception as error:
                results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def logits_of(model, run, place=PLACE):
    """The logits; in a pipeline only the last stage has any."""
    ids = torch.arange(12) * 37 % model.config.vocab_size
    hidden = run(ids, torch.arange(12), NaiveAttention(model.config))
    return model.logits(hidden) if place.last else None


def logits_of_parts(name, places, path):
    """The logits of the last stage's ranks."""
    running = []  # a stage that is dropped while its rows are on their way would break the exchange

    def compute(rank):
        place = Place(rank, *places)
        part = load_part(open_checkpoint(name), place, path, torch.float32, CPU)
        running.append(part)
        return logits_of(part.model, part.run, place)

    return on_all_ranks(compute, places[0] * places[1])[-places[0] :]


@pytest.mark.parametrize(
    ("shape", "places"),
    [
        *(
            pytest.param(shape, place, marks=() if place in PLACES[:2] else pytest.mark.stress)
            for shape, place in product(FAMILIES, PLACES)
        ),
        *first([("tiny-gemma4-e", (4, 1)), ("tiny-gemma4-e", (2, 1))]),
    ],
)
def test_together_they_compute_what_the_whole_model_does(shape, places, tmp_path):
    whole = load_model(open_checkpoint(f"random:{shape}"), dtype=torch.float32, device="cpu")
    with torch.inference_mode():
        wanted = logits_of(whole, whole)
    found = logits_of_parts(f"random:{shape}", places, str(tmp_path / "rendezvous"))
    torch.testing.assert_close(found[0], wanted, atol=2e-5, rtol=1e-4)
    assert all(torch.equal(other, found[0]) for other in found), "the same bits on every rank"


@pytest.mark.parametrize(
    "family",
    [
        *("gpt2", "llama", "qwen3", "gemma3", "phi3", "olmo2", "granite4", "gemma4", "gemma4-e"),
        *("mixtral", "qwen2-moe", "granite-moe", "gemma4-moe", "gpt-oss", "glm4-moe"),
    ],
)
def test_a_part_is_cut_from_the_files_as_it_is_from_the_whole(family, tmp_path):
    folder = write_folder(tmp_path / "model", family)
    whole = load_model(open_checkpoint(str(folder)), dtype=torch.float32, device="cpu")
    with torch.inference_mode():
        wanted = logits_of(whole, whole)
    places = (2, 1) if SHAPES[f"tiny-{family}"].per_layer_width else (2, 2)
    found = logits_of_parts(str(folder), places, str(tmp_path / "meet"))
    bound = 5e-5 * wanted.abs().max().item()  # these weights are not scaled down
    torch.testing.assert_close(found[0], wanted, atol=bound, rtol=1e-4)


def test_each_rank_has_the_sinks_of_its_query_heads():
    config = replace(SHAPES["tiny-qwen3-moe"], attention_sinks=True)
    model, sinks = create_model(config, device="meta"), torch.arange(config.num_heads)
    for ranks in (2, 4):
        cuts = [
            cut_of(model, layer.heads, "sinks", config.num_heads, 0, config.shard(rank, ranks))
            for layer in model.layers
            for rank in range(ranks)
        ]
        found = [cut(sinks).tolist() for cut in cuts]
        assert found == [[*config.shard(rank, ranks).heads] for _ in model.layers for rank in range(ranks)]


def test_each_rank_keeps_its_share_of_the_weights(tmp_path):
    def compute(rank):
        checkpoint = open_checkpoint("random:tiny-llama")
        model = load_part(checkpoint, Place(rank, 2, 1), str(tmp_path / "r"), torch.float32, CPU).model
        return sum(value.numel() for value in model.parameters())

    whole = load_model(open_checkpoint("random:tiny-llama"), dtype=torch.float32, device="cpu")
    total = sum(value.numel() for value in whole.parameters())
    vectors = sum(value.numel() for value in whole.parameters() if value.dim() == 1)
    for part in on_all_ranks(compute, 2):
        assert part == (total - vectors) // 2 + vectors


@pytest.mark.parametrize("tied", [False, True])
def test_only_the_outer_stages_keep_the_ends_of_the_model(tied, tmp_path):
    """Each as one matrix, whether embedding and head are tied or not."""
    checkpoint = open_checkpoint("random:tiny-llama")
    checkpoint = replace(checkpoint, config=replace(checkpoint.config, tie_embeddings=tied))

    def compute(rank):
        model = load_part(checkpoint, Place(rank, 1, 3), str(tmp_path / "r"), torch.float32, CPU).model
        return len({id(end.weight) for end in (model.embedding, model.head) if hasattr(end, "weight")})

    assert on_all_ranks(compute, 3) == [1, 0, 1]


def test_stages_divide_all_layers_in_order():
    for count in range(1, 9):
        for stages in range(1, count + 1):
            parts = [Place(rank, 1, stages).layers(count) for rank in range(stages)]
            assert [layer for part in parts for layer in part] == list(range(count))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_does_not_divide_is_named():
    with pytest.raises(ConfigError, match=r"num_attention_heads 4 cannot be divided among 3"):
        Place(0, 3, 1).shard(SHAPES["tiny-llama"])
    with pytest.raises(ConfigError, match=r"has only 2 layers"):
        Place(0, 1, 3).shard(SHAPES["tiny-llama"].stage(range(2)))
    with pytest.raises(ConfigError, match="pipeline_parallel 2: a layer attends to the keys and values of one in an"):
        Place(1, 1, 2).shard(replace(SHAPES["tiny-gemma4-e"], per_layer_width=0))
    with pytest.raises(ConfigError, match="pipeline_parallel 2: layers have embeddings of their own"):
        Place(0, 1, 2).shard(replace(SHAPES["tiny-gemma4-e"], kv_sources=()))


def test_ranks_on_gpus_share_a_norm_of_all_heads_without_kernels():
    options = EngineConfig(limits_of("tiny-olmo2"), 2, tensor_parallel=2, kernels=True, graphs=True)
    each = for_each_rank(options, SHAPES["tiny-olmo2"], torch.device("cuda"))
    assert (each.kernels, each.graphs) == (False, False)
    assert for_each_rank(options, SHAPES["tiny-qwen3"], torch.device("cuda")) == options


def test_the_check_notices_ranks_that_normalize_their_own_heads_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("gradus.parallel.model._share_norms", lambda *_: None)
    whole = load_model(open_checkpoint("random:tiny-olmo2"), dtype=torch.float32, device="cpu")
    with torch.inference_mode():
        wanted = logits_of(whole, whole)
    found = logits_of_parts("random:tiny-olmo2", (2, 1), str(tmp_path / "rendezvous"))
    assert (found[0] - wanted).abs().max() > 1e-3


def test_tensors_of_a_parameter_stay_together():
    """`Slices` numbers q, k and v by their order among the pieces of a parameter."""
    model = load_model(open_checkpoint("random:tiny-llama"), dtype=torch.float32, device="cpu")
    keys = [(id(piece.module), piece.parameter) for piece in plan(model)]
    assert len(list(groupby(keys))) == len(set(keys))
