"""The sizes of one device among several that share every matrix, and what each of them computes."""

from dataclasses import replace

import pytest
import torch

from gradus.models import SHAPES, Linear, Model, ModelConfig, Shard, create_model, parameter_count, randomize
from tests.models.conftest import NaiveAttention

SHAPE_NAMES = ["tiny-gpt2", "tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"]


@pytest.mark.parametrize("shape", SHAPE_NAMES)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_parts_of_all_ranks_are_the_whole(shape: str, count: int) -> None:
    config = SHAPES[shape]
    shards = [config.shard(rank, count) for rank in range(count)]
    assert [head for shard in shards for head in shard.heads] == list(range(config.num_heads))
    assert [each for shard in shards for each in shard.features] == list(range(config.intermediate_size))
    copies = max(1, count // config.num_kv_heads)  # of a key-value head, where ranks outnumber them
    kept = [head for shard in shards for head in shard.kv_heads]
    assert kept == [head for head in range(config.num_kv_heads) for _ in range(copies)]
    for shard in shards:  # each query head finds its key-value head on its own rank
        group, local = config.num_heads // config.num_kv_heads, shard.config.num_heads // shard.config.num_kv_heads
        assert [shard.kv_heads[i // local] for i in range(len(shard.heads))] == [h // group for h in shard.heads]
        assert (len(shard.heads), len(shard.kv_heads)) == (shard.config.num_heads, shard.config.num_kv_heads)
        assert len(shard.features) == shard.config.intermediate_size
        assert shard.config.hidden_size == config.hidden_size and shard.config.head_dim == config.head_dim


@pytest.mark.parametrize(("rows", "count", "slices"), [(320, 2, 160), (321, 2, 161), (50257, 4, 12565)])
def test_a_vocabulary_is_cut_into_equal_slices_with_padding_at_the_end(rows: int, count: int, slices: int) -> None:
    config = replace(SHAPES["tiny-llama"], vocab_size=rows)
    shards = [config.shard(rank, count) for rank in range(count)]
    assert [len(shard.tokens) for shard in shards] == [slices] * count == [s.config.vocab_size for s in shards]
    assert [row for shard in shards for row in shard.tokens] == list(range(slices * count))
    assert 0 <= slices * count - rows < count


@pytest.mark.parametrize("shape", SHAPE_NAMES)
def test_matrices_of_two_ranks_are_together_as_large_as_the_whole(shape: str) -> None:
    """Norms, biases of the outputs and learned positions are on both, and the vocabulary is even."""
    config = SHAPES[shape]
    parts = [create_model(config.shard(rank, 2).config) for rank in range(2)]
    sizes = [sum(part.weight.numel() for part in model.modules() if isinstance(part, Linear)) for model in parts]
    whole = [part.weight.numel() for part in create_model(config).modules() if isinstance(part, Linear)]
    assert sum(sizes) == sum(whole)
    for model in parts:
        assert sum(each.numel() for each in model.parameters()) == parameter_count(model.config)


@pytest.mark.parametrize(
    ("numbers", "rank", "count", "message"),
    [
        ({}, 0, 3, "num_attention_heads 4 cannot be divided among 3 devices: it must be a multiple of 3"),
        ({"intermediate_size": 161}, 0, 2, "intermediate_size 161 cannot be divided among 2 devices"),
        ({"num_heads": 12, "num_kv_heads": 3}, 0, 2, "num_key_value_heads 3 cannot be divided among 2 devices"),
        ({"num_heads": 12, "num_kv_heads": 3}, 1, 4, "num_key_value_heads 3 cannot be divided among 4 devices"),
        ({}, 2, 2, "rank must be between 0 and 1, got 2"),
        ({}, -1, 2, "rank must be between 0 and 1, got -1"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_in_one_line(numbers, rank: int, count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        replace(SHAPES["tiny-llama"], **numbers).shard(rank, count)
    assert "\n" not in str(caught.value)


def rows_of(whole: Linear, shard: Shard, config: ModelConfig) -> torch.Tensor:
    """Which rows of a product that reads the residual stream a rank has, by its role."""
    if whole.place.role == "gate_up":
        starts = range(0, sum(whole.out_features), config.intermediate_size)  # gate and features, or features
        return torch.cat([start + torch.tensor(shard.features) for start in starts])
    if whole.place.role == "head":
        return torch.tensor(shard.tokens)
    heads = [*shard.heads, *(config.num_heads + h for h in shard.kv_heads)]
    heads += [config.num_heads + config.num_kv_heads + h for h in shard.kv_heads]
    return (torch.tensor(heads)[:, None] * config.head_dim + torch.arange(config.head_dim)).flatten()


def cut(whole: Model, shard: Shard) -> Model:
    """A rank's model, filled by hand: rows of qkv, gate, up and head, columns of output and down, and all norms."""
    model, config = create_model(shard.config), whole.config
    theirs = dict(whole.named_modules())
    for name, part in model.named_modules():
        if not isinstance(part, Linear):
            for parameter, value in part.named_parameters(recurse=False):
                if value.shape == getattr(theirs[name], parameter).shape:  # the embedding is the head's slice
                    value.copy_(getattr(theirs[name], parameter))
        elif part.place.role in ("attn_out", "down"):
            width = config.head_dim if part.place.role == "attn_out" else 1
            units = torch.tensor(shard.heads if part.place.role == "attn_out" else shard.features)
            columns = (units[:, None] * width + torch.arange(width)).flatten()
            part.weight.copy_(theirs[name].weight[:, columns])
            if part.bias is not None:  # added once
                part.bias.copy_(theirs[name].bias if shard.heads.start == 0 else torch.zeros_like(part.bias))
        else:
            rows = rows_of(theirs[name], shard, config)
            part.weight.copy_(theirs[name].weight[rows])
            if part.bias is not None:
                part.bias.copy_(theirs[name].bias[rows])
    return model


@pytest.mark.parametrize("shape", SHAPE_NAMES)
@pytest.mark.parametrize("count", [2, 4])
@torch.inference_mode()
def test_what_the_ranks_add_to_the_stream_sums_to_what_the_whole_layer_adds(shape: str, count: int) -> None:
    whole = create_model(SHAPES[shape])
    randomize(whole, seed=3, std=0.1)
    ranks = [cut(whole, SHAPES[shape].shard(rank, count)) for rank in range(count)]
    positions = torch.arange(20)
    x = torch.randn(20, whole.config.hidden_size, generator=torch.Generator().manual_seed(1))

    def attended(model: Model, index: int) -> torch.Tensor:
        layer = model.parts()[index]
        rotation = None if layer.rope is None else layer.rope(positions)
        return layer.output(layer.heads(layer.qkv(layer.attention_norm(x)), rotation, NaiveAttention(model.config)))

    def computed(model: Model, index: int) -> torch.Tensor:
        layer = model.parts()[index]
        return layer.down(layer.activation(layer.up(layer.mlp_norm(x))))

    for index in range(whole.config.num_layers):
        for product in (attended, computed):
            sums = sum(product(model, index) for model in ranks)
            torch.testing.assert_close(sums, product(whole, index), rtol=1e-4, atol=1e-5)
            assert not torch.allclose(product(ranks[0], index), product(whole, index), atol=1e-3)
    logits = torch.cat([model.logits(x) for model in ranks], dim=-1)
    torch.testing.assert_close(logits, whole.logits(x), rtol=1e-4, atol=1e-5)
