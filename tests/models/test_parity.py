"""Our models compute what transformers computes, over odd shapes; and the comparison notices when they do not."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gradus.models import Model, ModelConfig, Rope
from gradus.models.families import gemma3 as gemma3_module
from gradus.models.families.gemma3 import Gemma3
from gradus.models.heads import Heads
from gradus.models.rope import rotate
from gradus.models.source import OnePlus, Stored
from tests.models.conftest import NaiveAttention, Reference, loaded, reference, run

TOLERANCE = 1e-4
NOTICEABLE = 1e-2  # a wrong model is off by at least this

SPECIALS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def gpt2(**settings: object) -> Reference:
    return reference("GPT2", **{"n_positions": 64, "n_layer": 3, **SPECIALS, **settings})


def rotary(kind: str, **settings: object) -> Reference:
    shape = {"intermediate_size": 84, "num_hidden_layers": 3, "max_position_embeddings": 64}
    return reference(kind, **{**shape, **SPECIALS, **settings})


def llama3_rope(**settings: object) -> dict:
    """A trained context of 24 tokens: of the few frequencies some are kept, some blended and some divided."""
    return {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 24,
        **settings,
    }


def yarn_rope(**settings: object) -> dict:
    """A trained context of 16 tokens, of 40 that are compared."""
    trained = {"factor": 4.0, "original_max_position_embeddings": 16}
    return {"rope_type": "yarn", "rope_theta": 500.0, "beta_fast": 4.0, **trained, **settings}


GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
LOCAL_GLOBAL = ["sliding_attention", "full_attention", "sliding_attention"]

CASES: dict[str, Callable[[], Reference]] = {
    "gpt2": lambda: gpt2(vocab_size=257, n_embd=48, n_head=3),
    "gpt2, untied, odd MLP, other activation": lambda: gpt2(
        vocab_size=331, n_embd=40, n_head=8, n_inner=100, tie_word_embeddings=False, activation_function="gelu"
    ),
    "gpt2, scores unscaled": lambda: gpt2(vocab_size=300, n_embd=33, n_head=3, scale_attn_weights=False),
    "llama, every head its own": lambda: rotary("Llama", vocab_size=257, hidden_size=48, num_attention_heads=4),
    "llama, biases, wide heads, 2 to 1": lambda: rotary(
        "Llama", vocab_size=331, hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=22,
        attention_bias=True, mlp_bias=True,
    ),
    "llama 3, scaled, tied, 3 to 1": lambda: rotary(
        "Llama", vocab_size=300, hidden_size=72, num_attention_heads=9, num_key_value_heads=3, head_dim=16,
        rope_parameters=llama3_rope(), tie_word_embeddings=True, rms_norm_eps=1e-2,
    ),
    "llama, linear scaling, 8 to 1": lambda: rotary(
        "Llama", vocab_size=257, hidden_size=64, num_attention_heads=8, num_key_value_heads=1,
        rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 1000.0},
    ),
    "mistral, window 7": lambda: rotary(
        "Mistral", vocab_size=257, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, sliding_window=7
    ),
    "mistral, window 1, narrow heads": lambda: rotary(
        "Mistral", vocab_size=331, hidden_size=64, num_attention_heads=8, num_key_value_heads=8, head_dim=6,
        sliding_window=1,
    ),
    "mistral, no window": lambda: rotary(
        "Mistral", vocab_size=331, hidden_size=48, num_attention_heads=3, num_key_value_heads=1, sliding_window=None
    ),
    "qwen2, tied, 7 to 1": lambda: rotary(
        "Qwen2", vocab_size=257, hidden_size=70, num_attention_heads=7, num_key_value_heads=1,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    ),
    "qwen2, every head its own, scaled": lambda: rotary(
        "Qwen2", vocab_size=331, hidden_size=48, num_attention_heads=4, num_key_value_heads=4,
        rope_parameters=llama3_rope(), rms_norm_eps=1e-2,
    ),
    "qwen2, windows from layer 2 on": lambda: rotary(
        "Qwen2", vocab_size=300, hidden_size=72, num_attention_heads=6, num_key_value_heads=2,
        use_sliding_window=True, sliding_window=6, max_window_layers=2,
    ),
    "qwen3, tied, 2 to 1": lambda: rotary(
        "Qwen3", vocab_size=257, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=20,
        tie_word_embeddings=True,
    ),
    "qwen3, biases, 8 to 1": lambda: rotary(
        "Qwen3", vocab_size=331, hidden_size=40, num_attention_heads=8, num_key_value_heads=1, head_dim=16,
        attention_bias=True, rope_parameters=llama3_rope(),
    ),
    "qwen3, windows from layer 1 on": lambda: rotary(
        "Qwen3", vocab_size=300, hidden_size=48, num_attention_heads=3, num_key_value_heads=3, head_dim=16,
        use_sliding_window=True, sliding_window=5, max_window_layers=1,
    ),
    "qwen2, yarn, beyond the trained length": lambda: rotary(
        "Qwen2", vocab_size=257, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=16, rope_parameters=yarn_rope(),
    ),
    "qwen3, yarn, beyond the trained length": lambda: rotary(
        "Qwen3", vocab_size=257, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=20,
        max_position_embeddings=20, rope_parameters=yarn_rope(attention_factor=1.5, truncate=False),
    ),
    "gemma3, local and global, tied, 2 to 1": lambda: rotary(
        "Gemma3Text", vocab_size=257, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=24,
        sliding_window=7, layer_types=LOCAL_GLOBAL, query_pre_attn_scalar=40,
    ),
    "gemma3, both caps, untied, biases, scaled": lambda: rotary(
        "Gemma3Text", vocab_size=331, hidden_size=64, num_attention_heads=8, num_key_value_heads=1, head_dim=10,
        sliding_window=5, layer_types=LOCAL_GLOBAL, rope_parameters=GEMMA_ROPES, tie_word_embeddings=False,
        attention_bias=True, query_pre_attn_scalar=4,
        final_logit_softcapping=1.5, attn_logit_softcapping=1.0, softcap=1.0,
    ),
    "gemma3, window as long as the context": lambda: rotary(
        "Gemma3Text", vocab_size=300, hidden_size=48, num_attention_heads=3, num_key_value_heads=3, head_dim=16,
        sliding_window=64, layer_types=LOCAL_GLOBAL, hidden_activation="gelu",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case: str) -> None:
    want = CASES[case]()
    assert want.logits.std() > 0.3, "weights too small for the comparison to mean anything"
    assert want.error(loaded(want.config, want.tensors)) <= TOLERANCE


@pytest.mark.parametrize("case", ["gpt2", "mistral, window 7", "gemma3, local and global, tied, 2 to 1"])
def test_a_sequence_fed_in_pieces_gives_the_same_logits(case: str) -> None:
    want = CASES[case]()
    model, attention = loaded(want.config, want.tensors), NaiveAttention(want.config)
    pieces, start = [], 0
    for count in (1, 17, 1, 1, 20):
        ids, positions = torch.tensor(want.tokens[start : start + count]), torch.arange(start, start + count)
        with torch.inference_mode():
            pieces.append(model.logits(model(ids, positions, attention)))
        start += count
    assert start == len(want.tokens)
    assert (torch.cat(pieces) - want.logits).abs().max() <= TOLERANCE


# ---- Deliberately broken models, which the comparison must notice ----------------------------------------------------


def window_one_too_long(config: ModelConfig) -> ModelConfig:
    return replace(config, windows=tuple(window and window + 1 for window in config.windows))


def rope_unscaled(config: ModelConfig) -> ModelConfig:
    (rope,) = set(config.ropes)
    assert rope is not None and rope.scaling is not None
    return replace(config, ropes=(Rope(rope.theta),) * config.num_layers)


def with_scaling(config: ModelConfig, **changes: object) -> ModelConfig:
    (rope,) = set(config.ropes)
    assert rope is not None and rope.scaling is not None
    return replace(config, ropes=(replace(rope, scaling=replace(rope.scaling, **changes)),) * config.num_layers)


BROKEN_CONFIGS: dict[str, tuple[str, Callable[[ModelConfig], ModelConfig]]] = {
    "mistral window too long by one": ("mistral, window 7", window_one_too_long),
    "gemma window too long by one": ("gemma3, local and global, tied, 2 to 1", window_one_too_long),
    "llama 3 scaling left out": ("llama 3, scaled, tied, 3 to 1", rope_unscaled),
    "linear scaling left out": ("llama, linear scaling, 8 to 1", rope_unscaled),
    "one rope for local and global": (
        "gemma3, local and global, tied, 2 to 1",
        lambda config: replace(config, ropes=(config.ropes[1],) * config.num_layers),
    ),
    "attention cap left out": (
        "gemma3, both caps, untied, biases, scaled",
        lambda config: replace(config, attention_softcap=None),
    ),
    "final cap left out": (
        "gemma3, both caps, untied, biases, scaled",
        lambda config: replace(config, final_softcap=None),
    ),
    "scores scaled by head_dim": (
        "gemma3, local and global, tied, 2 to 1",
        lambda config: replace(config, attention_scale=config.head_dim**-0.5),
    ),
    "yarn's amplitude left out": (
        "qwen3, yarn, beyond the trained length",
        lambda config: with_scaling(config, amplitude=1.0),
    ),
    "yarn rounding the bounds of its blend": (
        "qwen3, yarn, beyond the trained length",
        lambda config: with_scaling(config, whole=True),
    ),
    "norm without epsilon": (
        "llama 3, scaled, tied, 3 to 1",
        lambda config: replace(config, norm_eps=1e-12),
    ),
}


@pytest.mark.parametrize("name", BROKEN_CONFIGS)
def test_a_wrong_configuration_is_noticed(name: str) -> None:
    case, breaks = BROKEN_CONFIGS[name]
    want = CASES[case]()
    assert want.error(loaded(breaks(want.config), want.tensors)) > NOTICEABLE


def test_gemma_norms_without_the_one_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    want = CASES["gemma3, local and global, tied, 2 to 1"]()
    plain = {
        ours: Stored(theirs.name) if isinstance(theirs, OnePlus) else theirs
        for ours, theirs in gemma3_module.WEIGHTS.items()
    }
    monkeypatch.setattr(Gemma3, "weights", plain)
    assert want.error(loaded(want.config, want.tensors)) > NOTICEABLE


def test_unscaled_gemma_embeddings_are_noticed() -> None:
    want = CASES["gemma3, local and global, tied, 2 to 1"]()
    model = loaded(want.config, want.tensors)
    model.embedding_scale = 1.0
    assert want.error(model) > NOTICEABLE


def test_keys_and_values_exchanged_are_noticed() -> None:
    want = CASES["llama, biases, wide heads, 2 to 1"]()
    exchanged = dict(want.tensors)
    for name in want.tensors:
        if ".k_proj." in name:
            other = name.replace(".k_proj.", ".v_proj.")
            exchanged[name], exchanged[other] = want.tensors[other], want.tensors[name]
    assert want.error(loaded(want.config, exchanged)) > NOTICEABLE


def test_biases_of_queries_and_keys_left_out_are_noticed() -> None:
    want = CASES["qwen2, tied, 7 to 1"]()
    for name in ("q_proj", "k_proj"):
        without = {k: torch.zeros_like(v) if k.endswith(f"{name}.bias") else v for k, v in want.tensors.items()}
        assert want.error(loaded(want.config, without)) > NOTICEABLE


def test_heads_normalized_after_rotation_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    want = CASES["qwen3, tied, 2 to 1"]()
    model = loaded(want.config, want.tensors)

    def forward(heads, qkv, rotation, attention):  # the model's own lines, norm and rotation exchanged
        rows = qkv.unflatten(-1, (-1, heads.head_dim))
        q, k, v = rows.split((heads.num_heads, heads.num_kv_heads, heads.num_kv_heads), dim=1)
        q, k = heads.q_norm(rotate(q, rotation)), heads.k_norm(rotate(k, rotation))
        return attention.attend(heads.layer, q, k, v).flatten(1)

    monkeypatch.setattr(Heads, "forward", forward)
    assert want.error(model) > NOTICEABLE


# ---- Narrow types ----------------------------------------------------------------------------------------------------


def test_gemma_scales_embeddings_by_a_rounded_factor_in_bfloat16() -> None:
    """sqrt(72) = 8.485 is 8.5 in bfloat16, and 8.5 is what the model was trained with."""
    from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

    from gradus.models import SHAPES, create_model, randomize

    model = create_model(replace(SHAPES["tiny-gemma3"], hidden_size=72, embedding_scale=72**0.5), dtype=torch.bfloat16)
    randomize(model, std=0.1)
    theirs = Gemma3TextScaledWordEmbedding(320, 72, 0, embed_scale=72**0.5).to(torch.bfloat16)
    theirs.weight.data.copy_(model.embedding.weight)
    ids = torch.arange(320)
    assert model.embedding_scale == 8.5
    assert torch.equal(model.embed(ids, ids), theirs(ids))


@pytest.mark.parametrize(
    "shape", ["tiny-gpt2", "tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"]
)
def test_bfloat16_stays_near_float32_and_gives_float32_logits(shape: str, tiny_tokens: list[int]) -> None:
    from gradus.models import SHAPES, create_model, randomize

    def model(dtype: torch.dtype) -> Model:
        made = create_model(SHAPES[shape], dtype=dtype)
        randomize(made, seed=3, std=0.08)
        return made

    narrow, wide = run(model(torch.bfloat16), tiny_tokens), run(model(torch.float32), tiny_tokens)
    assert narrow.dtype == wide.dtype == torch.float32
    assert (narrow - wide).abs().mean() < 0.05 * wide.std()
