"""Loading checks every name and shape before it writes, and every value before it believes it."""

import threading
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.errors import CheckpointError
from gradus.models import SHAPES, Linear, MatrixId, Model, create_model, load_weights, randomize
from gradus.models.layers import FLOATS
from gradus.models.rope import frequencies
from gradus.models.weights import plan, tied_as_stored
from tests.models.conftest import InMemory, run

SHAPE_NAMES = ["tiny-gpt2", "tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"]
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def checkpoint(shape: str, std: float = 0.08) -> dict[str, Tensor]:
    """A complete checkpoint of random weights, under Hugging Face's names and in the file's shapes."""
    generator = torch.Generator().manual_seed(7)
    pieces = plan(create_model(SHAPES[shape]))
    return {p.stored.name: torch.randn(p.stored.file_shape(p.shape), generator=generator) * std for p in pieces}


def load(shape: str, tensors: dict[str, Tensor]) -> Model:
    model = create_model(SHAPES[shape])
    load_weights(model, InMemory(tensors))
    return model


def refusal(shape: str, tensors: dict[str, Tensor]) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(shape, tensors)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- What fits -------------------------------------------------------------------------------------------------------


def test_fused_rows_are_queries_keys_values_in_this_order() -> None:
    tensors = checkpoint("tiny-llama")
    model = load("tiny-llama", tensors)
    names = [f"model.layers.2.self_attn.{kind}_proj.weight" for kind in "qkv"]
    assert torch.equal(model.layers[2].qkv.weight, torch.cat([tensors[name] for name in names]))


def test_gpt2_matrices_are_transposed() -> None:
    tensors = checkpoint("tiny-gpt2")
    assert tensors["h.0.attn.c_attn.weight"].shape == (64, 192)
    assert torch.equal(load("tiny-gpt2", tensors).layers[0].qkv.weight, tensors["h.0.attn.c_attn.weight"].T)


def test_gemma_norms_are_stored_as_their_distance_from_one() -> None:
    tensors = checkpoint("tiny-gemma3")
    assert torch.equal(load("tiny-gemma3", tensors).norm.weight, 1 + tensors["model.norm.weight"])


def test_gpt2_loads_with_and_without_the_prefix_and_with_old_masks(tiny_tokens: list[int]) -> None:
    plain = checkpoint("tiny-gpt2")
    prefixed = {f"transformer.{name}": value for name, value in plain.items()}
    prefixed["transformer.h.0.attn.bias"] = torch.ones(1, 1, 512, 512).tril()
    prefixed["transformer.h.1.attn.bias"] = torch.ones(1, 1, 512, 512, dtype=torch.bool).tril()
    prefixed["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    prefixed["lm_head.weight"] = plain["wte.weight"]
    assert torch.equal(run(load("tiny-gpt2", plain), tiny_tokens), run(load("tiny-gpt2", prefixed), tiny_tokens))


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_gemma_loads_from_a_multimodal_checkpoint(prefix: str, tiny_tokens: list[int]) -> None:
    plain = checkpoint("tiny-gemma3")
    whole = {name.replace("model.", prefix, 1): value for name, value in plain.items()}
    whole |= {"vision_tower.x.weight": torch.ones(2), "model.multi_modal_projector.y.weight": torch.ones(2)}
    assert torch.equal(run(load("tiny-gemma3", plain), tiny_tokens), run(load("tiny-gemma3", whole), tiny_tokens))


def test_harmless_extras_are_ignored() -> None:
    rope, width = SHAPES["tiny-llama"].ropes[0], SHAPES["tiny-llama"].head_dim
    extras = {"model.layers.0.self_attn.rotary_emb.inv_freq": frequencies(rope, width).bfloat16()}
    load("tiny-llama", checkpoint("tiny-llama") | extras)


@pytest.mark.parametrize(
    ("shape", "name", "value", "what"),
    [
        ("tiny-gpt2", "h.0.attn.bias", torch.ones(1, 1, 8, 8), "a causal mask"),
        ("tiny-gpt2", "h.0.attn.bias", torch.ones(192), "a causal mask"),
        ("tiny-gpt2", "h.1.attn.masked_bias", torch.tensor(0.5), "one large negative number"),
        ("tiny-llama", "model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(8), "the rotary frequencies"),
        ("tiny-llama", "model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(3), "the rotary frequencies"),
    ],
)
def test_an_extra_that_contradicts_the_configuration_is_refused(shape, name, value, what) -> None:
    assert f"tensor '{name}' is not {what}" in refusal(shape, checkpoint(shape) | {name: value})


@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-gemma3"])
def test_a_head_of_its_own_counts_where_the_configuration_calls_it_tied(shape: str) -> None:
    config, tensors = SHAPES[shape], checkpoint(shape)
    family = type(create_model(config))
    table = tensors[str(family.weights["embedding.weight"])]
    assert config.tie_embeddings and tied_as_stored(config, family, InMemory(tensors)) is config
    for same in (table, table.double()):
        assert tied_as_stored(config, family, InMemory(tensors | {"lm_head.weight": same})) is config
    apart = tied_as_stored(config, family, InMemory(tensors | {"lm_head.weight": table + 1e-6}))
    assert apart == replace(config, tie_embeddings=False)


def test_progress_reports_every_tensor_and_its_bytes() -> None:
    tensors = checkpoint("tiny-qwen3")
    seen: dict[str, int] = {}
    load_weights(create_model(SHAPES["tiny-qwen3"]), InMemory(tensors), on_tensor=seen.__setitem__)
    assert seen == {name: value.nbytes for name, value in tensors.items()}


def test_a_model_made_in_inference_mode_is_filled_in_it() -> None:
    with torch.inference_mode():
        model = load("tiny-llama", checkpoint("tiny-llama"))
    assert all(parameter.is_inference() for parameter in model.parameters())


def test_modules_are_filled_by_several_threads_at_once(monkeypatch) -> None:
    together = threading.Barrier(3, timeout=20)

    class Meeting(InMemory):
        def read(self, name: str) -> Tensor:
            if "layernorm" in name and "layers.0." not in name:
                together.wait()
            return super().read(name)

    monkeypatch.setattr("gradus.models.weights.use", lambda threads: 3)
    tensors = checkpoint("tiny-llama")
    kept = {name for name in tensors if "layernorm" in name and "layers.0." not in name}
    assert len(kept) % 3 == 0, "each meets two others"
    load_weights(create_model(SHAPES["tiny-llama"]), Meeting(tensors))


@pytest.mark.parametrize("shape", SHAPE_NAMES)
def test_every_weight_is_written_and_every_tensor_read_once(shape: str) -> None:
    model = create_model(SHAPES[shape])
    for parameter in model.parameters():
        parameter.fill_(float("nan"))
    source = InMemory(checkpoint(shape))
    load_weights(model, source)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert sorted(source.reads) == sorted(source.tensors)


def test_a_tied_head_is_the_embedding_in_memory_too() -> None:
    model = load("tiny-gemma3", checkpoint("tiny-gemma3"))
    assert model.head.weight is model.embedding.weight
    untied = load("tiny-llama", checkpoint("tiny-llama"))
    assert untied.head.weight is not untied.embedding.weight


# ---- What does not ---------------------------------------------------------------------------------------------------


def test_a_wrong_shape_names_both_shapes() -> None:
    tensors = checkpoint("tiny-llama")
    tensors[Q_PROJ] = tensors[Q_PROJ][:64]
    assert refusal("tiny-llama", tensors) == (
        f"model.safetensors: tensor '{Q_PROJ}' has shape (64, 64), the configuration needs (96, 64)"
    )


def test_a_wrong_shape_of_a_transposed_tensor_is_given_as_the_file_has_it() -> None:
    tensors = checkpoint("tiny-gpt2")
    tensors["h.0.mlp.c_fc.weight"] = tensors["h.0.mlp.c_fc.weight"].T
    assert "has shape (256, 64), the configuration needs (64, 256)" in refusal("tiny-gpt2", tensors)


def test_missing_tensors_are_named_and_counted() -> None:
    tensors = checkpoint("tiny-llama")
    del tensors[Q_PROJ], tensors["model.norm.weight"], tensors["lm_head.weight"]
    assert f"lacks tensor '{Q_PROJ}' and 2 more" in refusal("tiny-llama", tensors)


def test_unknown_tensors_are_named_and_counted() -> None:
    """A bias that the configuration does not speak of would otherwise be lost in silence."""
    extras = {"model.layers.0.self_attn.q_proj.bias": torch.zeros(96), "score.weight": torch.zeros(2, 64)}
    message = refusal("tiny-llama", checkpoint("tiny-llama") | extras)
    assert message == (
        "model.safetensors: tensor 'model.layers.0.self_attn.q_proj.bias' and 1 more has no place in a llama model "
        "of this configuration"
    )


def test_a_fifth_layer_is_unknown() -> None:
    extra = {"model.layers.4.input_layernorm.weight": torch.zeros(64)}
    assert "layers.4" in refusal("tiny-llama", checkpoint("tiny-llama") | extra)


def test_one_tensor_under_two_names_is_refused() -> None:
    tensors = checkpoint("tiny-gpt2")
    message = refusal("tiny-gpt2", tensors | {"transformer.wte.weight": tensors["wte.weight"]})
    assert "'wte.weight' and 'transformer.wte.weight' are the same tensor" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", [Q_PROJ, "model.norm.weight", "lm_head.weight"])
def test_values_that_are_not_finite_are_refused(name: str, value: float) -> None:
    tensors = checkpoint("tiny-llama")
    tensors[name].view(-1)[-3] = value
    assert f"tensor '{name}' holds NaN, infinity" in refusal("tiny-llama", tensors)


def test_values_too_large_for_the_models_type_are_refused() -> None:
    tensors = checkpoint("tiny-llama")
    tensors[Q_PROJ][5, 5] = 70000.0
    model = create_model(SHAPES["tiny-llama"], dtype=torch.float16)
    with pytest.raises(CheckpointError, match=r"beyond torch\.float16: -0\.\d+ to 70000"):
        load_weights(model, InMemory(tensors))


def test_integers_are_not_weights() -> None:
    tensors = checkpoint("tiny-llama")
    tensors[Q_PROJ] = torch.ones(96, 64, dtype=torch.int8)
    assert "holds torch.int8, expected floating-point weights" in refusal("tiny-llama", tensors)


def test_a_file_whose_tensor_differs_from_its_header_is_refused() -> None:
    class Lying(InMemory):
        def read(self, name: str) -> Tensor:
            return super().read(name)[:1] if name == Q_PROJ else super().read(name)

    with pytest.raises(CheckpointError, match="holds shape"):
        load_weights(create_model(SHAPES["tiny-llama"]), Lying(checkpoint("tiny-llama")))


def test_after_a_damaged_tensor_hardly_any_other_is_read(monkeypatch) -> None:
    class Slow(InMemory):
        def read(self, name: str) -> Tensor:
            time.sleep(0.01)
            return super().read(name)

    monkeypatch.setattr("gradus.models.weights.use", lambda threads: 1)
    tensors = checkpoint("tiny-llama")
    tensors["model.layers.0.self_attn.q_proj.weight"][0] = float("nan")
    source = Slow(tensors)
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.q_proj"):
        load_weights(create_model(SHAPES["tiny-llama"]), source)
    assert len(source.reads) < len(tensors) / 2


@pytest.mark.parametrize("damage", ["missing", "unknown", "shape"])
def test_nothing_is_written_or_read_before_everything_fits(damage: str) -> None:
    tensors = checkpoint("tiny-llama")
    last = list(tensors)[-1]
    if damage == "missing":
        del tensors[last]
    elif damage == "unknown":
        tensors["zzz"] = torch.ones(1)
    else:
        tensors[last] = tensors[last][:-1]
    model, source = create_model(SHAPES["tiny-llama"]), InMemory(tensors)
    randomize(model, seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError):
        load_weights(model, source)
    assert source.reads == []
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


# ---- The seam for other ways to keep weights -------------------------------------------------------------------------


class Bfloat16Linear(Linear):
    """Weights in bfloat16, arithmetic in the activations' type."""

    def __init__(self, matrix_id, in_features, out_features, bias, dtype=torch.float32, device="cpu") -> None:
        super().__init__(matrix_id, in_features, out_features, bias, torch.bfloat16, device)

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class PackedLinear(Linear):
    """Keeps nothing that looks like a weight: every row a separate tensor in a list."""

    def __init__(self, matrix_id, in_features, out_features, bias, dtype=torch.float32, device="cpu") -> None:
        super().__init__(matrix_id, in_features, out_features, bias, dtype, device)
        self.rows: dict[str, dict[int, Tensor]] = {"weight": {}, "bias": {}}
        del self.weight, self.bias

    def assign(self, name: str, start: int, value: Tensor) -> None:
        self.rows[name] |= {start + row: line.clone() for row, line in enumerate(value)}

    def forward(self, x: Tensor) -> Tensor:
        stacked = {name: torch.stack([rows[i] for i in sorted(rows)]) for name, rows in self.rows.items() if rows}
        return F.linear(x, stacked["weight"], stacked.get("bias"))


class Int8Linear(Linear):
    """Rows of integers with a scale each, from floats or from a checkpoint that holds integers already."""

    accepted = FLOATS | {torch.int8}

    def __init__(self, matrix_id, in_features, out_features, bias, dtype=torch.float32, device="cpu") -> None:
        super().__init__(matrix_id, in_features, out_features, bias, dtype, device)
        rows = sum(out_features)
        del self.weight
        self.integers = torch.zeros(rows, in_features, dtype=torch.int8)
        self.scales = torch.ones(rows, 1)

    def assign(self, name: str, start: int, value: Tensor) -> None:
        if name == "bias":
            super().assign(name, start, value)
            return
        rows = slice(start, start + len(value))
        if value.is_floating_point():
            self.scales[rows] = value.abs().amax(1, keepdim=True) / 127
            value = (value / self.scales[rows]).round()
        self.integers[rows] = value

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.integers * self.scales, self.bias)


def all_but_the_head(matrix_id: MatrixId, *shape, **where) -> Linear:
    return (Linear if matrix_id.role == "head" else Int8Linear)(matrix_id, *shape, **where)


@pytest.mark.parametrize("shape", SHAPE_NAMES)
def test_a_factory_is_told_the_role_and_the_layer_of_every_matrix(shape: str) -> None:
    model = create_model(SHAPES[shape])
    matrix_ids = [module.matrix_id for module in model.modules() if isinstance(module, Linear)]
    roles = ("qkv", "attn_out", "gate_up", "down")
    layers = range(model.config.num_layers)
    assert sorted(matrix_ids[:-1]) == sorted((role, layer) for layer in layers for role in roles)
    assert matrix_ids[-1] == model.head.matrix_id == ("head", None)
    assert model.layers[1].qkv.matrix_id == ("qkv", 1) and model.layers[0].down.matrix_id == ("down", 0)


@pytest.mark.parametrize("shape", SHAPE_NAMES)
def test_a_factory_may_quantize_everything_but_the_head(shape: str, tiny_tokens: list[int]) -> None:
    tensors = checkpoint(shape)
    model = create_model(SHAPES[shape], linear=all_but_the_head)
    load_weights(model, InMemory(tensors))
    assert type(model.head) is Linear
    kinds = {type(part) for layer in model.layers for part in layer.modules() if isinstance(part, Linear)}
    assert kinds == {Int8Linear}
    if model.config.tie_embeddings:
        assert model.embedding.weight is model.head.weight
    found, exact = run(model, tiny_tokens), run(load(shape, tensors), tiny_tokens)
    assert 0 < (found - exact).norm() < 0.1 * exact.norm()


def test_a_linear_says_which_stored_types_it_accepts() -> None:
    tensors = checkpoint("tiny-llama")
    tensors[Q_PROJ] = (tensors[Q_PROJ] * 100).to(torch.int8)
    model = create_model(SHAPES["tiny-llama"], linear=all_but_the_head)
    load_weights(model, InMemory(tensors))
    assert torch.equal(model.layers[1].qkv.integers[: len(tensors[Q_PROJ])], tensors[Q_PROJ])
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)  # no Linear's
    with pytest.raises(CheckpointError, match=r"holds torch.int8, expected floating-point weights"):
        load_weights(model, InMemory(tensors))
    tensors = checkpoint("tiny-llama")
    tensors[Q_PROJ] = tensors[Q_PROJ].to(torch.uint8)
    with pytest.raises(CheckpointError, match=r"holds torch.uint8, expected .*torch.float64 or torch.int8"):
        load_weights(model, InMemory(tensors))


@pytest.mark.parametrize("shape", SHAPE_NAMES)
def test_weights_kept_narrower_than_activations(shape: str, tiny_tokens: list[int]) -> None:
    tensors = checkpoint(shape)
    narrow, plain = create_model(SHAPES[shape], linear=Bfloat16Linear), create_model(SHAPES[shape])
    load_weights(narrow, InMemory(tensors))
    load_weights(plain, InMemory(tensors))
    for module in plain.modules():
        if isinstance(module, Linear):
            for parameter in module.parameters(recurse=False):
                parameter.copy_(parameter.bfloat16())
    if hasattr(plain, "embedding_scale"):
        plain.embedding_scale = narrow.embedding_scale  # rounded as the weights are
    assert narrow.layers[0].attention_norm.weight.dtype == torch.float32
    if narrow.config.tie_embeddings:
        assert narrow.embedding.weight is narrow.head.weight and narrow.embedding.weight.dtype == torch.bfloat16
    assert torch.equal(run(narrow, tiny_tokens), run(plain, tiny_tokens))


@pytest.mark.parametrize("shape", SHAPE_NAMES)
def test_weights_kept_in_no_readable_form(shape: str, tiny_tokens: list[int]) -> None:
    tensors = checkpoint(shape)
    packed = create_model(SHAPES[shape], linear=PackedLinear)
    load_weights(packed, InMemory(tensors))
    assert torch.equal(run(packed, tiny_tokens), run(load(shape, tensors), tiny_tokens))


@pytest.mark.parametrize("shape", SHAPE_NAMES)
def test_random_weights_do_not_depend_on_how_they_are_kept(shape: str, tiny_tokens: list[int]) -> None:
    config = SHAPES[shape]
    packed, plain = create_model(config, linear=PackedLinear), create_model(config)
    randomize(packed, seed=5, std=0.08)
    randomize(plain, seed=5, std=0.08)
    assert torch.equal(run(packed, tiny_tokens), run(plain, tiny_tokens))
