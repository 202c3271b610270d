"""A dense family that Gradus does not have, in the pieces that CONTRIBUTING.md asks for.

It mixes traits that no real family here combines: LayerNorm before and after attention and MLP, normalized heads,
rotary positions, and an MLP without a gate. `ParallelToy` is the same with attention and MLP side by side: an order of
parts that kernels do not know.
"""

from typing import Any

import torch
from torch import Tensor, nn

from gradus.models.config import ModelConfig, Rope
from gradus.models.families.hf.fields import Fields
from gradus.models.families.records import Family, ModelType
from gradus.models.heads import Heads
from gradus.models.layers import Activation, Embedding, MatrixId, Model, RMSNorm
from gradus.models.parts import LayerParts
from gradus.models.rope import RotaryTable

# -- hf/: its config.json ------------------------------------------------------------------------------------

RAW: dict[str, Any] = {
    "model_type": "toy", "vocab_size": 320, "width": 48, "features": 100, "layers": 3, "heads": 4, "kv_heads": 2,
    "head_dim": 20, "context": 128, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip


def read_toy(fields: Fields) -> ModelConfig:
    layers, head_dim = fields.integer("layers"), fields.integer("head_dim")
    return ModelConfig(
        family=fields.text("model_type"),
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("width"),
        intermediate_size=fields.integer("features"),
        num_layers=layers,
        num_heads=fields.integer("heads"),
        num_kv_heads=fields.integer("kv_heads"),
        head_dim=head_dim,
        context_length=fields.integer("context"),
        norm_eps=1e-5,
        activation="gelu",
        tie_embeddings=True,
        attention_bias=False,
        attention_output_bias=False,
        mlp_bias=False,
        ropes=(Rope(1000.0),) * layers,
        windows=(None,) * layers,
        attention_scale=head_dim**-0.5,
        attention_softcap=None,
        final_softcap=20.0,
        bos_token_id=fields.integer("bos_token_id", least=0),
        eos_token_ids=(2, 0),
        gated=False,
        norm_bias=True,
        qk_norm=True,
        post_norms=True,
    )


def write_toy(config: ModelConfig) -> dict[str, Any]:
    return RAW | {"model_type": config.family, "layers": config.num_layers}


# -- toy.py: the model ------------------------------------------------------------------------------------------------

NORMS = ("attention_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm")
WEIGHTS = {
    "embedding.weight": "tokens.weight",
    "layers.{}.qkv.weight": ("blocks.{}.q.weight", "blocks.{}.k.weight", "blocks.{}.v.weight"),
    "layers.{}.heads.q_norm.weight": "blocks.{}.q_norm.weight",
    "layers.{}.heads.k_norm.weight": "blocks.{}.k_norm.weight",
    "layers.{}.output.weight": "blocks.{}.o.weight",
    "layers.{}.up.weight": "blocks.{}.up.weight",
    "layers.{}.down.weight": "blocks.{}.down.weight",
    **{f"layers.{{}}.{norm}.{name}": f"blocks.{{}}.{norm}.{name}" for norm in NORMS for name in ("weight", "bias")},
    "norm.weight": "last.weight",
    "norm.bias": "last.bias",
    "head.weight": "lm_head.weight",
}


class Block(nn.Module):
    def __init__(self, config, index, linear, dtype, device):
        super().__init__()
        hidden, width, eps = config.hidden_size, config.intermediate_size, config.norm_eps
        for name in NORMS:
            self.add_module(name, nn.LayerNorm(hidden, eps, dtype=dtype, device=device))
        self.qkv = linear(MatrixId("qkv", index), hidden, config.qkv_widths, False, dtype, device)
        q_norm, k_norm = (RMSNorm(config.head_dim, eps, dtype, device) for _ in range(2))
        self.heads = Heads(config, index, q_norm, k_norm)
        self.output = linear(MatrixId("attn_out", index), config.q_width, (hidden,), False, dtype, device)
        self.up = linear(MatrixId("gate_up", index), hidden, config.up_widths, False, dtype, device)
        self.activation = Activation(config.activation)
        self.down = linear(MatrixId("down", index), width, (hidden,), False, dtype, device)

    def attention(self, x, rotation, attention):
        qkv = self.qkv.after(self.attention_norm, x)
        return self.attention_out_norm(self.output(self.heads(qkv.to(x.dtype), rotation, attention)))

    def mlp(self, x):
        return self.mlp_out_norm(self.down(self.up.after(self.mlp_norm, x, self.activation)))

    def forward(self, x, rotation, attention):
        x = x + self.attention(x, rotation, attention)
        return x + self.mlp(x)

    def parts(self, rope: RotaryTable) -> LayerParts:
        attention = self.attention_norm, self.qkv, self.heads, self.output
        mlp = self.mlp_norm, self.up, self.activation, self.down
        return LayerParts(rope, *attention, *mlp, self.attention_out_norm, self.mlp_out_norm)


class Toy(Model):
    weights = WEIGHTS
    block: type[Block] = Block

    def __init__(self, config, linear, dtype, device):
        super().__init__()
        self.config = config
        self.head = linear(MatrixId("head", None), config.hidden_size, (config.vocab_size,), False, dtype, device)
        self.embedding = Embedding(config.vocab_size, config.hidden_size, dtype, device, shared=self.head)
        self.rope = RotaryTable(config.ropes[0], config.head_dim, config.context_length, dtype, device)
        self.layers = nn.ModuleList(self.block(config, i, linear, dtype, device) for i in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype, device=device)

    def embed(self, token_ids, positions):
        return self.embedding(token_ids)

    def run_layers(self, x, positions, attention):
        rotation = self.rope(positions)
        for layer in self.layers:
            x = layer(x, rotation, attention)
        return x

    def parts(self) -> list[LayerParts]:
        return [layer.parts(self.rope) for layer in self.layers]


class ParallelBlock(Block):
    """Inherits a description that is wrong for it."""

    def forward(self, x, rotation, attention):
        return x + self.attention(x, rotation, attention) + self.mlp(x)


class ParallelToy(Toy):
    block = ParallelBlock


# -- records.py: its record -------------------------------------------------------------------------------------------

TOY = Family("tests.models.toy_family:Toy", {"toy": ModelType("ToyForCausalLM", read_toy)}, write_toy)
PARALLEL = Family(
    "tests.models.toy_family:ParallelToy", {"parallel-toy": ModelType("ParallelToyForCausalLM", read_toy)}, write_toy
)

# -- the reference: plain formulas over the checkpoint's own tensors, in float64 -----------------------------------


def reference_logits(tensors: dict[str, Tensor], tokens: list[int], parallel: bool) -> Tensor:
    """[T, V]."""
    w = {name: value.double() for name, value in tensors.items()}
    x = w["tokens.weight"][torch.tensor(tokens)]
    for n in range(RAW["layers"]):
        attended = _norm(
            w, f"blocks.{n}.attention_out_norm", _attention(w, n, _norm(w, f"blocks.{n}.attention_norm", x))
        )
        seen = x if parallel else x + attended
        features = nn.functional.gelu(_norm(w, f"blocks.{n}.mlp_norm", seen) @ w[f"blocks.{n}.up.weight"].T)
        x = x + attended + _norm(w, f"blocks.{n}.mlp_out_norm", features @ w[f"blocks.{n}.down.weight"].T)
    return 20 * torch.tanh(_norm(w, "last", x) @ w["tokens.weight"].T / 20)


def _norm(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def _attention(w: dict[str, Tensor], n: int, x: Tensor) -> Tensor:
    heads, kv_heads, dim, count = RAW["heads"], RAW["kv_heads"], RAW["head_dim"], len(x)
    q, k, v = ((x @ w[f"blocks.{n}.{name}.weight"].T).view(count, -1, dim) for name in "qkv")
    q, k = (_turned(_head_norm(each, w[f"blocks.{n}.{name}_norm.weight"])) for name, each in (("q", q), ("k", k)))
    out = torch.zeros_like(q)
    for h in range(heads):
        group = h // (heads // kv_heads)
        scores = (q[:, h] @ k[:, group].T) * dim**-0.5
        future = torch.ones(count, count).triu(1).bool()
        out[:, h] = scores.masked_fill(future, float("-inf")).softmax(-1) @ v[:, group]
    return out.flatten(1) @ w[f"blocks.{n}.o.weight"].T


def _head_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def _turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(len(x)).double(), 1000.0 ** (-torch.arange(half).double() / half))[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)
