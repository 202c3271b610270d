"""Layers by block table: a page has the same bytes in every group, and nothing is left unused that need not be."""

from dataclasses import replace

import pytest

from gradus.cache.groups import layer_groups, page_layout
from gradus.models.config import LayerSizes, ModelConfig, kv_bytes_per_token
from gradus.models.shapes import SHAPES

Heads = tuple[int, int]


def gemma4(layers: int, every: int, sliding: Heads, full: Heads, shared: int = 0, heads: int = 16) -> ModelConfig:
    """Of `every` layers one is full, the last. shared: layers at the end that read those of the last of their kind."""
    windows = tuple(None if layer % every == every - 1 else 1024 for layer in range(layers))
    own = windows[: layers - shared]
    last = {window: max(layer for layer, each in enumerate(own) if each == window) for window in (None, 1024)}
    sources = tuple(layer if layer < len(own) else last[window] for layer, window in enumerate(windows))
    return replace(
        SHAPES["tiny-llama"], num_layers=layers, num_heads=heads, num_kv_heads=sliding[0], head_dim=sliding[1],
        windows=windows, ropes=(None,) * layers, kv_sources=sources if shared else (),
        sizes=tuple(LayerSizes(*(full if window is None else sliding), 160) for window in windows),
    )  # fmt: skip


def groups_of(config: ModelConfig) -> list[tuple[int | None, int]]:
    return [(group.window, len(group.layers)) for group in layer_groups(config)]


# what the docstring of gradus.cache.groups lists
PUBLISHED = {
    "12B": (gemma4(48, 6, (8, 256), (1, 512)), 2048, 2, [(None, 8)] + [(1024, 2)] * 20),
    "31B": (gemma4(60, 6, (16, 256), (4, 512), heads=32), 4096, 5, [(None, 10)] + [(1024, 5)] * 10),
    "E2B": (gemma4(35, 5, (1, 256), (1, 512), 20, heads=8), 512, 3, [(None, 3), (1024, 6), (1024, 6)]),
    "E4B": (gemma4(42, 6, (2, 256), (2, 512), 18, heads=8), 1024, 4, [(None, 4), (1024, 8), (1024, 8), (1024, 4)]),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_gemma_4_s_pages(name):
    config, width, depth, groups = PUBLISHED[name]
    layout = page_layout(config)
    assert (layout.width, layout.depth, groups_of(config)) == (width, depth, groups)
    taken, needed = len(groups) * layout.position_bytes(2), kv_bytes_per_token(config, 2)
    unused = {"E4B": layout.position_bytes(2) // 2}.get(name, 0)
    assert taken - needed == unused
    assert all(config.stores_kv(layer) for group in layout.groups for layer in group.layers)


def test_scales_have_room_for_each_kind_of_layer():
    layout = page_layout(PUBLISHED["12B"][0])
    assert layout.head_sizes == {(1, 512): 4, (8, 256): 1}
    assert layout.position_bytes(1, 4) == 2 * 2 * (2048 + 4 * (4 + 8)) == 2 * 2 * 2096


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ("tiny-llama", [(None, 4)]),
        ("tiny-mistral", [(16, 4)]),
        ("gemma3-270m", [(None, 3)] + [(512, 3)] * 5),
        ("gemma3-1b", [(None, 4)] + [(512, 4)] * 5 + [(512, 2)]),
    ],
)
def test_layers_alike_are_grouped_by_their_windows(shape, groups):
    config = SHAPES[shape]
    layout = page_layout(config)
    assert groups_of(config) == groups and layout.width == config.kv_width
    assert {group.together for group in layout.groups} == {1}
    assert sorted(layer for group in layout.groups for layer in group.layers) == list(range(config.num_layers))


def test_a_strip_is_as_wide_as_both_kinds_of_layers_fill():
    """192 values and 256: four layers of the one kind, or three of the other."""
    layout = page_layout(gemma4(14, 2, (3, 64), (1, 256), heads=12))
    assert layout.width == 768 and layout.head_sizes == {(1, 256): 3, (3, 64): 4}
    assert layout.depth == 2 and [len(group.layers) for group in layout.groups] == [6, 1, 7]


def test_a_draft_model_s_strips_hold_as_many_layers_as_those_whose_tables_it_reads():
    config = SHAPES["tiny-llama"]
    layout = page_layout(config, together=3)
    (group,) = layout.groups
    assert (layout.width, layout.depth, group.together) == (3 * config.kv_width, 2, 3)  # 4 layers in 2 strips of 3
