"""A decoder put together from its configuration alone, with any trait that a layer may have, and plain pages for it.

It computes what `LayerParts` says, line by line, so kernels are tested on every trait alone, in combinations that no
family has. Its pages are those of a cache in which every layer has its own heads; they attend without any of the
engine's code but the block tables' rule.
"""

from dataclasses import replace
from functools import lru_cache
from zlib import crc32

import torch
from torch import Tensor, nn

from gradus.attention.batch import Batch
from gradus.kernels.cpu.model import DecodeModel
from gradus.loading.gguf.packed import KEPT
from gradus.models import SHAPES, Linear, LinearFactory, MatrixId, Model
from gradus.models.config import CLAMPED, Experts, LayerSizes, ModelConfig, QueryGrowth, Rope
from gradus.models.experts import Mixture
from gradus.models.heads import Heads
from gradus.models.layers import Activation, Embedding, RMSNorm, gated
from gradus.models.parts import EmbeddedParts, LayerParts
from gradus.models.rope import Rotations
from gradus.models.weights import assign, parameters
from gradus.quantization.gguf import GGUFLinear
from tests.kernels.cpu.steps import FEW, ROOM, generator, noise
from tests.loading.gguf_blocks import encode

KINDS = {format: kind for kind, format in KEPT.items()}

ROPE, OTHER = Rope(10000.0), Rope(500.0, turned=8, proportional=True)
NARROW, WIDE = LayerSizes(2, 24, 160), LayerSizes(1, 48, 320)  # as in Gemma 4: fewer heads, of more values

FEW_EXPERTS = Experts(6, 2, 64)


def experts(*, alone: bool = True, **fields: object) -> dict[str, object]:
    """Experts in all layers but the second, which are all that these have if `alone`."""
    mixture = replace(FEW_EXPERTS, **fields)
    dense = SHAPES["tiny-llama"].layer(0)
    dense = LayerSizes(dense.num_kv_heads, dense.head_dim, dense.intermediate_size)
    only = dense._replace(intermediate_size=0) if alone else dense._replace(intermediate_size=80)
    return {"experts": (mixture, None, mixture, mixture), "sizes": (only, dense, only, only)}


TRAITS = {
    "norms behind": {"pre_norms": False, "post_norms": True},
    "norms of heads": {"qk_norm": True},
    "norms across heads": {"qk_norm": True, "qk_norm_across_heads": True},
    "norms of values": {"value_norm": True},
    "not turned": {"ropes": (ROPE, None, OTHER, None)},
    "queries that grow": {"ropes": 4 * (replace(ROPE, growth=QueryGrowth(0.7, 16)),)},
    "sizes": {"sizes": (NARROW, WIDE, NARROW, WIDE), "windows": (16, None, 16, None)},
    "sources": {"kv_sources": (0, 1, 0, 1), "windows": (16, None, 16, None), "qk_norm": True},
    "scales": {"layer_scales": True},
    "scales behind norms": {"layer_scales": True, "post_norms": True},
    "embeddings per layer": {"per_layer_width": 32},
    "a plain MLP": {"gated": False, "activation": "gelu"},
    "sinks": {"attention_sinks": True},
    "a clamped gate": {"activation": CLAMPED},
    "experts": experts(),
    "one expert": experts(chosen=1, normalized=False),
    "all experts": experts(chosen=6),
    "experts by sigmoids": experts(sigmoid=True, corrected=True, scale=2.5),
    "experts in groups": experts(count=12, chosen=3, sigmoid=True, corrected=True, groups=4, chosen_groups=2),
    "groups of one": experts(groups=6, chosen_groups=3),
    "experts with biases": experts(biased=True) | {"activation": CLAMPED},
    "experts with factors": experts(scaled=True, normalized=False),
    "plain experts": experts() | {"gated": False, "activation": "gelu"},
    "shared experts": experts(alone=False),
    "gated shared experts": experts(alone=False) | {"shared_gate": True},
    "experts and norms": experts(alone=False) | {"post_norms": True},
    "experts apart": experts(alone=False, scaled=True) | {"experts_apart": True, "post_norms": True},
    "experts of odd widths": experts(alone=False, width=40, biased=True) | {"shared_gate": True},
}
"""Each trait: the fields that a configuration has it by."""

ALL = {
    "post_norms": True,
    "qk_norm": True,
    "value_norm": True,
    "ropes": (ROPE, replace(OTHER, growth=QueryGrowth(0.7, 16)), None, OTHER),
    "sizes": (NARROW, WIDE, NARROW, WIDE._replace(intermediate_size=96)),
    "windows": (16, None, 16, None),
    "kv_sources": (0, 1, 0, 1),
    "layer_scales": True,
    "per_layer_width": 32,
    "final_softcap": 20.0,
    "activation": "gelu_tanh",
    "attention_sinks": True,
    "experts": (
        Experts(6, 2, 96, scaled=True, biased=True),
        None,
        Experts(12, 3, 64, sigmoid=True, normalized=False, scale=1.5, corrected=True, groups=4, chosen_groups=2),
        Experts(5, 5, 32, corrected=True),
    ),
    "experts_apart": True,
    "shared_gate": True,
}


def config_of(**traits: object) -> ModelConfig:
    return replace(SHAPES["tiny-llama"], **({"context_length": ROOM} | traits))


class Layer(nn.Module):
    """Everything that the configuration says of one layer."""

    def __init__(self, config: ModelConfig, index: int, linear: LinearFactory, dtype: torch.dtype) -> None:
        super().__init__()
        sizes, hidden = config.layer(index), config.hidden_size
        rest = dtype, "cpu"

        def norm(width: int, has: bool = True) -> RMSNorm | None:
            return RMSNorm(width, config.norm_eps, *rest) if has else None

        across = config.qk_norm_across_heads
        q_norm = norm(sizes.q_width if across else sizes.head_dim, config.qk_norm)
        k_norm = norm(sizes.kv_width if across else sizes.head_dim, config.qk_norm and config.stores_kv(index))
        sinks = nn.Parameter(torch.empty(sizes.num_heads), False) if config.attention_sinks else None
        self.heads = Heads(config, index, q_norm, k_norm, sinks)
        self.attention_norm, self.mlp_norm = norm(hidden, config.pre_norms), norm(hidden, config.pre_norms)
        self.attention_out_norm, self.mlp_out_norm = norm(hidden, config.post_norms), norm(hidden, config.post_norms)
        self.qkv = linear(MatrixId("qkv", index), hidden, config.qkv_parts(index), False, *rest)
        self.output = linear(MatrixId("attn_out", index), sizes.q_width, (hidden,), False, *rest)
        self.gate = gated(config.activation) if config.gated else Activation(config.activation)
        self.up = self.down = self.experts = self.shared_gate = self.dense_out_norm = None
        if features := sizes.intermediate_size:
            self.up = linear(MatrixId("gate_up", index), hidden, sizes.up_widths, False, *rest)
            self.down = linear(MatrixId("down", index), features, (hidden,), False, *rest)
        if config.experts_at(index) is not None:
            self.experts = Mixture(config, index, _routed_in_floats(linear), *rest)
            self.dense_out_norm = norm(hidden, config.experts_apart)
            if config.shared_gate:
                self.shared_gate = Linear(MatrixId("shared_gate", index), hidden, (1,), False, *rest)
        self.scale = nn.Parameter(torch.empty(1, dtype=dtype), False) if config.layer_scales else None
        if width := config.per_layer_width:
            self.embed_gate = linear(MatrixId("embed_gate", index), hidden, (width,), False, *rest)
            self.embed_activation = Activation("silu")  # other than the MLP's
            self.embed_out = linear(MatrixId("embed_out", index), width, (hidden,), False, *rest)
            self.embed_norm = norm(hidden)
        self.has_embedding = width > 0

    def parts(self, rope) -> LayerParts:
        embedded = None
        if self.has_embedding:
            embedded = EmbeddedParts(self.embed_gate, self.embed_activation, self.embed_out, self.embed_norm)
        attention = self.attention_norm, self.qkv, self.heads, self.output
        mlp = self.mlp_norm, self.up, self.gate, self.down
        behind = self.attention_out_norm, self.mlp_out_norm
        mixed = self.experts, self.shared_gate, self.dense_out_norm
        return LayerParts(rope, *attention, *mlp, *behind, embedded, self.scale, *mixed)

    def forward(self, x: Tensor, inputs: Tensor, rotation, attention) -> Tensor:
        def normed(norm: nn.Module | None, values: Tensor) -> Tensor:
            return values if norm is None else norm(values)

        qkv = self.qkv(normed(self.attention_norm, x)).to(x.dtype)
        x = x + normed(self.attention_out_norm, self.output(self.heads(qkv, rotation, attention)))
        total = torch.zeros_like(x)
        if self.up is not None:
            features = self.gate(self.up(normed(self.mlp_norm, x)))
            if self.shared_gate is not None:
                features = features * torch.sigmoid(self.shared_gate(normed(self.mlp_norm, x)))
            total = normed(self.dense_out_norm, self.down(features))
        if self.experts is not None:
            total = total + self.experts(x, self.mlp_norm)
        x = x + normed(self.mlp_out_norm, total)
        if self.has_embedding:
            x = x + self.embed_norm(self.embed_out(self.embed_activation(self.embed_gate(x)) * inputs))
        return x if self.scale is None else x * self.scale


def _routed_in_floats(linear: LinearFactory) -> LinearFactory:
    """Routers are never quantized."""

    def make(matrix_id: MatrixId, *arguments) -> Linear:
        return (Linear if matrix_id.role == "router" else linear)(matrix_id, *arguments)

    return make


class Decoder(Model):
    def __init__(self, config: ModelConfig, linear: LinearFactory = Linear, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.dtype, self.device = config, dtype, torch.device("cpu")
        hidden = config.hidden_size
        self.embedding = Embedding(config.vocab_size, config.input_width, dtype, "cpu")
        self.inputs = nn.ModuleDict()
        if width := config.num_layers * config.per_layer_width:
            self.inputs["product"] = linear(MatrixId("embed_in", None), hidden, (width,), False, dtype, "cpu")
        self.rotations = Rotations(config, dtype, "cpu")
        self.layers = nn.ModuleList(Layer(config, index, linear, dtype) for index in range(config.num_layers))
        self.norm = RMSNorm(hidden, config.norm_eps, dtype, "cpu")
        self.head = linear(MatrixId("head", None), hidden, (config.vocab_size,), False, dtype, "cpu")

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(token_ids)
        for product in self.inputs.values():
            stream, inputs = self._apart(x)
            x = torch.cat((stream, inputs + product(stream).to(x.dtype)), dim=1)
        return x

    def _apart(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The stream, and all layers' inputs."""
        return x.tensor_split([self.config.hidden_size], dim=1)

    def run_layers(self, x: Tensor, positions: Tensor, attention) -> Tensor:
        config, rotations = self.config, self.rotations(positions)
        x, inputs = self._apart(x)
        inputs = inputs.unflatten(1, (config.num_layers, config.per_layer_width))
        for index, layer in enumerate(self.layers):
            x = layer(x, inputs[:, index], rotations[index], attention)
        return x

    def parts(self) -> list[LayerParts]:
        return [layer.parts(self.rotations.table(index)) for index, layer in enumerate(self.layers)]


def decoder(
    traits: dict, linear: LinearFactory = Linear, dtype: torch.dtype = torch.float32, std: float = 0.1, **more: object
) -> Decoder:
    """A decoder of noise, which depends on a weight's name and shape alone: decoders differ by their traits only."""
    model = Decoder(config_of(**(traits | more)), linear, dtype).requires_grad_(False).eval()
    for path, module, name, shape in parameters(model):
        center = 1.0 if len(shape) == 1 else 0.0
        values = center + std * _noise_of(path, tuple(shape))
        if isinstance(module, GGUFLinear) and name != "bias":
            module.store(0, torch.from_numpy(encode(values.numpy(), KINDS[module.format.name])))
        else:
            assign(module, name, 0, values)
    return model


@lru_cache(1024)  # decoders of other traits have most of their weights in common
def _noise_of(path: str, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=generator(crc32(path.encode())))


class PlainPages:
    """Every layer's keys and values in pages of its own, filled with noise, of slots whose pages lie scattered.

    It is the model's `attention` as well: plain softmax, sequence by sequence.
    """

    def __init__(self, model: Model, page_size: int = 16, dtype: torch.dtype = torch.float32, slots: int = FEW) -> None:
        self.config, self.page_size, config = model.config, page_size, model.config
        self.windows = list(dict.fromkeys(config.windows))
        longest = -(-config.context_length // page_size)
        count = len(self.windows) * slots * longest
        order = torch.randperm(count, generator=generator(3)) + 1
        self.tables = order.view(len(self.windows), slots, longest).contiguous()
        self.kept = {
            layer: tuple(
                noise(((count + 1) * page_size, sizes.num_kv_heads, sizes.head_dim), 2 * layer + which).to(
                    dtype, copy=True
                )
                for which in range(2)
            )
            for layer in range(config.num_layers)
            if config.stores_kv(layer)
            for sizes in [config.layer(layer)]
            for shape in [((count + 1) * page_size, sizes.num_kv_heads, sizes.head_dim)]
        }
        self.attention = self

    def decode_model(self, model: Model, threads: int = 2) -> DecodeModel:
        layers = range(self.config.num_layers)
        return DecodeModel(
            model,
            cache=[(*self.kept[self.config.kv_source(layer)], self._group(layer)) for layer in layers],
            tables=self.tables,
            page_size=self.page_size,
            windows=self.windows,
            threads=threads,
        )

    def _group(self, layer: int) -> int:
        return self.windows.index(self.config.windows[layer])

    def prepare(self, batch: Batch) -> None:
        self.slots, self.positions = batch.owners.tolist(), batch.positions

    def rows(self, layer: int, slot: int, oldest: int, end: int) -> Tensor:
        positions = torch.arange(oldest, end)
        pages = self.tables[self._group(layer), slot, positions // self.page_size]
        return pages * self.page_size + positions % self.page_size

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        keys, values = self.kept[self.config.kv_source(layer)]
        if k is not None and v is not None:
            for row, (slot, position) in enumerate(zip(self.slots, self.positions.tolist(), strict=True)):
                place = self.rows(layer, slot, position, position + 1)
                keys[place], values[place] = k[row].to(keys.dtype), v[row].to(values.dtype)
        out = torch.empty_like(q)
        for slot in dict.fromkeys(self.slots):
            mine = torch.tensor([row for row, owner in enumerate(self.slots) if owner == slot])
            out[mine] = self._sequence(layer, q[mine], keys, values, sinks, slot, self.positions[mine])
        return out

    def _sequence(
        self, layer: int, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None, slot: int, positions: Tensor
    ) -> Tensor:
        """Attend with the queries of one sequence's rows, [R, Hq, Dh]."""
        window, sharing = self.config.windows[layer], q.shape[1] // keys.shape[1]
        end = int(positions.max()) + 1
        seen = self.rows(layer, slot, 0, end)
        mine, theirs = (kept[seen].to(q.dtype).repeat_interleave(sharing, 1) for kept in (keys, values))
        back = positions[:, None] - torch.arange(end)  # how far each row looks back at each position
        hidden = (back < 0) | (back >= (window or end))
        scores = torch.einsum("rhd,lhd->rhl", q, mine) * self.config.attention_scale
        scores = scores.masked_fill(hidden[:, None], -torch.inf)
        scores = scores if sinks is None else torch.cat((scores, sinks[:, None].expand(len(q), -1, 1)), 2)
        weights = scores.softmax(-1)[..., :end]
        return torch.einsum("rhl,lhd->rhd", weights, theirs)
