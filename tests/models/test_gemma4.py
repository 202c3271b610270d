"""Gemma 4 computes what transformers computes: in each corner that its configurations have, and in random ones."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from gradus.errors import ConfigError
from gradus.loading import load_model, open_checkpoint
from gradus.models import (
    SHAPES,
    Linear,
    MatrixId,
    ModelConfig,
    create_model,
    load_weights,
    read_config,
    write_config,
)
from gradus.models.config import LayerSizes, parameter_count
from gradus.models.weights import plan
from gradus.quantization.gguf import GGUFLinear
from gradus.quantization.linear import QuantizedLinear
from gradus.quantization.mix import Mix, factory, matrix_ids, names_of
from tests.models.conftest import InMemory, NaiveAttention, Reference, loaded, reference, run

TOLERANCE = 1e-4  # of the largest logit
NOTICEABLE = 1e-2

LOCAL, WHOLE = "sliding_attention", "full_attention"
PATTERN = [LOCAL, WHOLE, LOCAL, WHOLE, LOCAL, WHOLE]
ROPES = {
    WHOLE: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 5000.0},
    LOCAL: {"rope_type": "default", "rope_theta": 100.0},
}
DENSE = {
    "vocab_size": 257, "hidden_size": 48, "intermediate_size": 84, "num_hidden_layers": 6, "layer_types": PATTERN,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 24, "sliding_window": 7,
    "max_position_embeddings": 64, "hidden_size_per_layer_input": 0, "rope_parameters": ROPES,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
KEYS_AS_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
EMBEDDED = {"hidden_size_per_layer_input": 20, "vocab_size_per_layer_input": 257}
SHARED = {"num_kv_shared_layers": 3, "use_double_wide_mlp": True}
EXPERTS = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 36}

CORNERS: dict[str, dict[str, object]] = {
    "two head sizes": {},
    "values are keys": KEYS_AS_VALUES,
    "values are keys, with biases": {**KEYS_AS_VALUES, "attention_bias": True},
    "one key-value head": {"num_key_value_heads": 1},
    "no sliding layers": {"layer_types": [WHOLE] * 6},
    "one head size": {"global_head_dim": 16},
    "shared keys and values": SHARED,
    "shared keys and values, of keys": {**SHARED, **KEYS_AS_VALUES},
    "all but the least shared": {**SHARED, "num_kv_shared_layers": 4},
    "all but the first shared, no sliding layers": {**SHARED, "num_kv_shared_layers": 5, "layer_types": [WHOLE] * 6},
    "shared, not wider": {**SHARED, "use_double_wide_mlp": False},
    "embeddings of each layer": EMBEDDED,
    "everything of E2B": {**SHARED, **EMBEDDED, "final_logit_softcapping": 3.0},
    "experts": EXPERTS,
    "everything of 26B-A4B": {**EXPERTS, **KEYS_AS_VALUES, "final_logit_softcapping": 3.0},
    "experts and embeddings of each layer": {**EXPERTS, **EMBEDDED, **SHARED},
    "a cap": {"final_logit_softcapping": 1.5},
    "untied": {"tie_word_embeddings": False},
    "untied, embeddings of each layer": {**EMBEDDED, "tie_word_embeddings": False},
    "a large epsilon": {**EMBEDDED, "rms_norm_eps": 1e-2},
    "everything turns": {"rope_parameters": {**ROPES, WHOLE: {**ROPES[WHOLE], "partial_rotary_factor": 1.0}}},
    "turns slowed": {"rope_parameters": {**ROPES, WHOLE: {**ROPES[WHOLE], "factor": 4.0}}},
    "other kinds of rotation": {
        "rope_parameters": {WHOLE: {"rope_type": "linear", "factor": 2.0, "rope_theta": 900.0}, LOCAL: ROPES[LOCAL]}
    },
    "defaults of the file": {"rope_parameters": None, "layer_types": None, "hidden_activation": "gelu"},
    "the last layer is whole in any case": {"layer_types": [LOCAL] * 6},
}


def gemma4(kind: str = "Gemma4Text", **settings: object) -> Reference:
    return reference(kind, **{**DENSE, **settings})


def check(want: Reference) -> None:
    got = run(loaded(want.config, want.tensors), want.tokens)
    assert want.logits.std() > 0.1, "weights too small for the comparison to mean anything"
    assert (got - want.logits).abs().max() <= TOLERANCE * want.logits.abs().max()
    assert torch.equal(got.argmax(-1), want.logits.argmax(-1))
    assert read_config(write_config(want.config)) == want.config
    assert sum(each.numel() for each in create_model(want.config).parameters()) == parameter_count(want.config)


@pytest.mark.parametrize("corner", CORNERS)
def test_logits_equal_those_of_transformers(corner: str) -> None:
    check(gemma4(**CORNERS[corner]))


def drawn(seed: int) -> dict[str, object]:
    """A random configuration."""
    draw = random.Random(seed)
    layers = draw.randint(1, 7)
    types = [draw.choice((LOCAL, WHOLE)) for _ in range(layers - 1)] + [WHOLE]
    least = max(types.index(kind) for kind in types) + 1  # layers with keys and values of their own
    heads = draw.choice((2, 4, 6))
    divisors = [count for count in (1, 2, 3, 6) if heads % count == 0]
    turned = draw.choice((0.25, 0.5, 1.0))
    embedded = draw.choice((0, 0, 8, 20))
    return {
        "vocab_size": (vocabulary := draw.randint(200, 331)),
        "vocab_size_per_layer_input": vocabulary,
        "hidden_size": draw.choice((40, 48, 66)),
        "intermediate_size": draw.choice((50, 84)),
        "num_hidden_layers": layers,
        "layer_types": types,
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice(divisors),
        "num_global_key_value_heads": draw.choice([None, *divisors]),
        "head_dim": draw.choice((8, 16, 22)),
        "global_head_dim": draw.choice((16, 24, 44)),
        "attention_k_eq_v": draw.random() < 0.5,
        "attention_bias": draw.random() < 0.2,
        "sliding_window": draw.choice((1, 5, 7, 64)),
        "num_kv_shared_layers": draw.choice((0, layers - least, draw.randint(0, layers - least))),
        "use_double_wide_mlp": draw.random() < 0.5,
        "hidden_size_per_layer_input": embedded,
        "final_logit_softcapping": draw.choice((None, 2.0, 30.0)),
        **draw.choice(({}, {**EXPERTS, "top_k_experts": draw.randint(1, 4)})),
        "tie_word_embeddings": draw.random() < 0.7,
        "rms_norm_eps": draw.choice((1e-6, 1e-3)),
        "rope_parameters": {**ROPES, WHOLE: {**ROPES[WHOLE], "partial_rotary_factor": turned}},
    }


@pytest.mark.parametrize("seed", range(20))
def test_random_configurations_equal_those_of_transformers(seed: int) -> None:
    check(gemma4(**drawn(seed)))


def test_the_unified_type_is_the_same_model() -> None:
    settings = {key: value for key, value in DENSE.items() if key != "hidden_size_per_layer_input"}
    check(reference("Gemma4UnifiedText", **{**settings, **KEYS_AS_VALUES}))


@pytest.mark.parametrize("corner", ["values are keys", "everything of E2B"])
def test_a_sequence_fed_in_pieces_gives_the_same_logits(corner: str) -> None:
    want = gemma4(**CORNERS[corner])
    model, attention = loaded(want.config, want.tensors), NaiveAttention(want.config)
    tokens, pieces = iter(enumerate(want.tokens)), []
    for count in (1, 17, 1, 1, 20):
        positions, ids = zip(*islice(tokens, count), strict=True)
        with torch.inference_mode():
            pieces.append(model.logits(model(torch.tensor(ids), torch.tensor(positions), attention)))
    assert (torch.cat(pieces) - want.logits).abs().max() <= TOLERANCE * want.logits.abs().max()


@pytest.mark.parametrize("corner", ["values are keys", "everything of E2B"])
def test_bfloat16_loses_no_more_than_in_transformers(corner: str) -> None:
    """Scores are not scaled, so a softmax here magnifies rounding more than in other families."""
    import transformers

    want = gemma4(**CORNERS[corner])
    tensors = {name: value.bfloat16() for name, value in want.tensors.items()}
    settings = transformers.Gemma4TextConfig(**{**DENSE, **CORNERS[corner]}, attn_implementation="eager")
    theirs = transformers.Gemma4ForCausalLM(settings).eval().bfloat16()
    theirs.load_state_dict(tensors)
    ours = create_model(want.config, dtype=torch.bfloat16)
    load_weights(ours, InMemory(tensors))
    exact = run(loaded(want.config, tensors), want.tokens)
    with torch.inference_mode():
        found = theirs(torch.tensor([want.tokens]), output_hidden_states=True).logits[0].float()
    assert (run(ours, want.tokens) - exact).abs().mean() < 1.3 * (found - exact).abs().mean() < 0.2 * exact.std()


# -- what is read ------------------------------------------------------------------------------------------------------


def test_published_spelling_and_that_of_transformers_are_the_same_configuration() -> None:
    """Published files name the sizes of layers that see everything; transformers lists them by layer."""
    published = {"model_type": "gemma4_text", **DENSE, **KEYS_AS_VALUES}
    want = gemma4(**KEYS_AS_VALUES)
    assert "per_layer_config" in want.raw and read_config(published) == want.config
    assert want.config.sizes == (LayerSizes(2, 16, 84), LayerSizes(1, 24, 84)) * 3


def test_the_other_count_of_key_value_heads_needs_keys_as_values() -> None:
    raw = {"model_type": "gemma4_text", **DENSE, "num_global_key_value_heads": 1}
    assert {sizes.num_kv_heads for sizes in read_config(raw).sizes} == {2}


@pytest.mark.parametrize(("kind", "text"), [("gemma4", "gemma4_text"), ("gemma4_unified", "gemma4_unified_text")])
def test_the_text_part_of_a_multimodal_file_is_read(kind: str, text: str) -> None:
    whole = {
        "model_type": kind,
        "text_config": {**DENSE, "model_type": text, "eos_token_id": 5},
        "eos_token_id": [1, 9],
    }
    alone = {"model_type": text, **DENSE, "eos_token_id": [1, 9]}
    assert read_config(whole) == read_config(alone)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"enable_moe_block": True, "num_experts": 8}, "top_k_experts is missing"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all', but only causal"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers 5 leaves no full_attention layer"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers must be an integer between 0 and 5"),
        ({**EMBEDDED, "vocab_size_per_layer_input": 99}, "vocab_size_per_layer_input must be vocab_size, 257, got 99"),
        ({"per_layer_config": {"3": {"num_attention_heads": 2}}}, "per_layer_config.3.num_attention_heads cannot be"),
        (
            {"rope_parameters": {WHOLE: {"rope_type": "proportional", "partial_rotary_factor": 0.01}}},
            "rope_parameters.full_attention.partial_rotary_factor 0.01 turns 0 of a head's 24 values",
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_its_key(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config({"model_type": "gemma4_text", **DENSE, **settings})


def test_bidirectional_attention_to_images_leaves_text_causal() -> None:
    raw = {"model_type": "gemma4_text", **DENSE}
    assert read_config({**raw, "use_bidirectional_attention": "vision"}) == read_config(raw)


# -- what is loaded ----------------------------------------------------------------------------------------------------


def test_a_multimodal_checkpoint_is_loaded_without_its_other_parts() -> None:
    want = gemma4(**CORNERS["everything of E2B"])
    tensors = {name.replace("model.", "model.language_model.", 1): value for name, value in want.tensors.items()}
    others = ("vision_tower.encoder.weight", "vision_embedder.patch_dense.bias", "embed_vision.pos_norm.weight",
              "audio_tower.layers.0.norm.weight", "embed_audio.embedding_projection.weight")  # fmt: skip
    tensors |= {f"model.{name}": torch.zeros(3) for name in others}
    assert want.error(loaded(want.config, tensors)) <= TOLERANCE


SIGHT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 64,
}  # fmt: skip
HEARING = {"hidden_size": 32, "num_attention_heads": 2, "output_proj_dims": 32, "subsampling_conv_channels": [8, 8]}
SEEING: dict[str, tuple[dict[str, object], dict[str, object], dict[str, object]]] = {
    "Gemma4": (CORNERS["everything of E2B"], SIGHT, {**HEARING, "num_hidden_layers": 1}),
    "Gemma4Unified": (
        KEYS_AS_VALUES,
        {"mm_embed_dim": 48, "output_proj_dims": 48, "mm_posemb_size": 8, "patch_size": 2},
        {"audio_embed_dim": 16},
    ),
}


@pytest.mark.parametrize("kind", SEEING)
def test_a_folder_of_a_model_that_sees_and_hears_loads_as_its_text_part(kind: str, tmp_path: Path) -> None:
    import transformers

    text, sight, hearing = SEEING[kind]
    unused = {"hidden_size_per_layer_input"} if kind == "Gemma4Unified" else set()
    text = {key: value for key, value in {**DENSE, **text}.items() if key not in unused}
    settings = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=sight, audio_config=hearing)
    theirs = getattr(transformers, f"{kind}ForConditionalGeneration")(settings).eval()
    for weight in theirs.parameters():
        torch.nn.init.normal_(weight, 1.0 if weight.ndim == 1 else 0.0, 0.2 if weight.ndim == 1 else 0.1)
    theirs.save_pretrained(tmp_path)
    ours = load_model(open_checkpoint(str(tmp_path)), dtype=torch.float32, device="cpu")
    tokens = [*range(3, 40)]
    with torch.inference_mode():
        want = theirs(torch.tensor([tokens]), output_hidden_states=True).logits[0]
    assert (run(ours, tokens) - want).abs().max() <= TOLERANCE * want.abs().max()


def test_keys_and_values_that_published_files_hold_for_shared_layers_are_not_used() -> None:
    want = gemma4(**SHARED)
    names = [f"model.layers.3.self_attn.{name}.weight" for name in ("k_proj", "v_proj", "k_norm")]
    assert not want.tensors.keys() & set(names)
    source = want.tensors | {name: torch.full((2,), float("nan")) for name in names}
    assert want.error(loaded(want.config, source)) <= TOLERANCE


def test_scales_of_layers_are_read() -> None:
    want = gemma4()
    ones = {
        name: torch.ones_like(value) if name.endswith("layer_scalar") else value for name, value in want.tensors.items()
    }
    assert want.error(loaded(want.config, ones)) > NOTICEABLE


BROKEN: dict[str, Callable[[ModelConfig], ModelConfig]] = {
    "values are not normalized": lambda config: replace(config, value_norm=False),
    "wavelengths of a smaller head": lambda config: replace(
        config, ropes=tuple(replace(rope, proportional=False) for rope in config.ropes)
    ),
    "scores are scaled": lambda config: replace(config, attention_scale=0.25),
    "windows are too long by one": lambda config: replace(
        config, windows=tuple(window and window + 1 for window in config.windows)
    ),
    "another layer's keys and values": lambda config: replace(config, kv_sources=(0, 1, 2, 3, 0, 1)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_configuration_is_noticed(name: str) -> None:
    want = gemma4(**{**SHARED, "num_kv_shared_layers": 2})
    assert want.error(loaded(want.config, want.tensors)) <= TOLERANCE
    assert want.error(loaded(BROKEN[name](want.config), want.tensors)) > NOTICEABLE


# -- in fewer bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "error"), [("int8", 0.06), ("int4", 0.5), ("fp8", 0.2), ("fp8-block", 0.2)])
@pytest.mark.parametrize("corner", ["values are keys", "everything of E2B"])
def test_every_matrix_is_quantized_as_it_is_loaded(corner: str, scheme: str, error: float) -> None:
    """error: the root mean square of the logits' error, as a part of theirs; 1.4 for those of another model."""
    wide = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "global_head_dim": 32}
    embedded = {"hidden_size_per_layer_input": 32} if "E2B" in corner else {}
    want = gemma4(**{**CORNERS[corner], **wide, **embedded})
    # large scores would magnify what rounding did to them
    tensors = {name: value * 0.1 if "q_norm" in name else value for name, value in want.tensors.items()}
    mix = Mix.of(scheme)
    mix.check(want.config)
    model = create_model(want.config, linear=factory(mix, want.config, Linear))
    load_weights(model, InMemory(tensors))
    matrices = [module for module in model.modules() if isinstance(module, Linear) and module is not model.head]
    assert {module.matrix_id for module in matrices} == {*matrix_ids(want.config)} - {model.head.matrix_id}
    assert all(isinstance(module, QuantizedLinear) for module in matrices)
    floats = run(loaded(want.config, tensors), want.tokens)
    found = run(model, want.tokens) - floats
    assert found.square().mean().sqrt() < error * floats.square().mean().sqrt()


def test_a_matrix_has_the_names_of_what_the_files_hold_for_it() -> None:
    config = gemma4(**{**CORNERS["everything of E2B"], **KEYS_AS_VALUES}).config
    assert names_of(MatrixId("qkv", 1), config) == [f"model.layers.1.self_attn.{name}_proj" for name in "qkk"]
    assert names_of(MatrixId("qkv", 5), config) == ["model.layers.5.self_attn.q_proj"]
    assert names_of(MatrixId("embed_gate", 5), config) == ["model.layers.5.per_layer_input_gate"]
    assert names_of(MatrixId("embed_in", None), config) == ["model.per_layer_model_projection"]
    Mix("", (("model.embed_tokens_per_layer", "int8"),)).check(config)


def test_the_second_table_may_be_in_blocks_of_its_own() -> None:
    config = SHAPES["tiny-gemma4-e"]
    mix = Mix("", (("model.embed_tokens_per_layer", "q8_0"), ("*", "none")))
    model = create_model(config, linear=factory(mix, config, Linear))
    assert isinstance(model.inputs.embedding.table, GGUFLinear) and model.embedding.lookup is None
    (piece,) = [piece for piece in plan(model) if piece.module is model.inputs.embedding.table]
    assert piece.stored.name == "model.embed_tokens_per_layer.weight" and piece.shape == (320, 6 * 32)
