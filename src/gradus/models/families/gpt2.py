"""GPT-2 (Radford et al. 2019): the decoder at its plainest, and the one to read first.

A token's row starts as the sum of its token embedding and its position embedding. Every layer adds two things to it:
what attention gathered from the tokens before it, and what an MLP made of that. Each reads a normalized copy (LayerNorm
before, not after), so the row itself runs from bottom to top unhindered: the residual stream. At the top, the tokens
whose embeddings have the largest dot products with the row are the likeliest to come next.

Shapes: N tokens, D hidden_size, H heads, Dh = D / H, F = 4 D, V vocabulary.
"""

from typing import cast

import torch
from torch import Tensor, nn

from gradus.models.attention import Attention
from gradus.models.config import ModelConfig
from gradus.models.heads import Heads
from gradus.models.layers import Activation, Embedding, EmbeddingTables, LinearFactory, MatrixId, Model, packed_table
from gradus.models.parts import LayerParts
from gradus.models.source import Ignored, Source, Transposed

# GPT-2 keeps its matrices as [in, out] (a "Conv1D" of width one); ours are [out, in], as in every other family.
WEIGHTS: dict[str, Source] = {
    "embedding.weight": "wte.weight",
    "position_embedding.weight": "wpe.weight",
    "layers.{}.attention_norm.weight": "h.{}.ln_1.weight",
    "layers.{}.attention_norm.bias": "h.{}.ln_1.bias",
    "layers.{}.qkv.weight": Transposed("h.{}.attn.c_attn.weight"),
    "layers.{}.qkv.bias": "h.{}.attn.c_attn.bias",
    "layers.{}.output.weight": Transposed("h.{}.attn.c_proj.weight"),
    "layers.{}.output.bias": "h.{}.attn.c_proj.bias",
    "layers.{}.mlp_norm.weight": "h.{}.ln_2.weight",
    "layers.{}.mlp_norm.bias": "h.{}.ln_2.bias",
    "layers.{}.up.weight": Transposed("h.{}.mlp.c_fc.weight"),
    "layers.{}.up.bias": "h.{}.mlp.c_fc.bias",
    "layers.{}.down.weight": Transposed("h.{}.mlp.c_proj.weight"),
    "layers.{}.down.bias": "h.{}.mlp.c_proj.bias",
    "norm.weight": "ln_f.weight",
    "norm.bias": "ln_f.bias",
    "head.weight": "lm_head.weight",
}


class Block(nn.Module):
    """One layer: look around (attention), then think (MLP), and add the result of each to the input."""

    def __init__(
        self, config: ModelConfig, index: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        hidden, q_width, width = config.hidden_size, config.q_width, config.intermediate_size

        self.attention_norm = nn.LayerNorm(hidden, config.norm_eps, dtype=dtype, device=device)
        self.qkv = linear(MatrixId("qkv", index), hidden, config.qkv_widths, config.attention_bias, dtype, device)
        self.output = linear(
            MatrixId("attn_out", index), q_width, (hidden,), config.attention_output_bias, dtype, device
        )
        self.mlp_norm = nn.LayerNorm(hidden, config.norm_eps, dtype=dtype, device=device)
        self.up = linear(MatrixId("gate_up", index), hidden, config.up_widths, config.mlp_bias, dtype, device)
        self.activation = Activation(config.activation)
        self.down = linear(MatrixId("down", index), width, (hidden,), config.mlp_bias, dtype, device)
        self.heads = Heads(config, index)

    def forward(self, x: Tensor, attention: Attention) -> Tensor:
        qkv = self.qkv.after(self.attention_norm, x)  # [N, 3 D]: H query heads, H key heads, H value heads
        x = self.output.onto(x, self.heads(qkv.to(x.dtype), None, attention))  # positions are in x already
        features = self.up.after(self.mlp_norm, x, self.activation)  # [N, D] → [N, F]
        return self.down.onto(x, features)  # [N, F] → [N, D]

    def parts(self) -> LayerParts:
        attention = self.attention_norm, self.qkv, self.heads, self.output
        mlp = self.mlp_norm, self.up, self.activation, self.down
        return LayerParts(None, *attention, *mlp)


def _is_causal(mask: Tensor) -> bool:
    size = mask.shape[-1] if mask.dim() == 4 else 0
    return mask.shape == (1, 1, size, size) and bool(
        (mask[0, 0].bool() == mask.new_ones(size, size).tril().bool()).all()
    )


def _is_minus_infinity(bias: Tensor) -> bool:
    return bias.numel() == 1 and bias.item() < -1000


class GPT2(Model):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS
    renamed = (("transformer.", ""),)  # OpenAI's files have no prefix; those saved by transformers have this one
    ignored = (  # the causal mask and its minus infinity, which early files stored as if they were weights
        Ignored(r"^h\.\d+\.attn\.bias$", "a causal mask", lambda _, mask: _is_causal(mask)),
        Ignored(r"^h\.\d+\.attn\.masked_bias$", "one large negative number", lambda _, bias: _is_minus_infinity(bias)),
    )

    def __init__(
        self, config: ModelConfig, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.config = config
        head = linear(MatrixId("head", None), config.hidden_size, (config.vocab_size,), False, dtype, device)
        table = config.vocab_size, config.hidden_size, dtype, device
        tied, packed = (head, None) if config.tie_embeddings else (None, packed_table(linear, *table))
        self.embedding = Embedding(*table, shared=tied, table=packed)
        self.position_embedding = Embedding(config.context_length, config.hidden_size, dtype, device)
        self.layers = nn.ModuleList(Block(config, index, linear, dtype, device) for index in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype, device=device)
        self.head = head

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        return self.embedding(token_ids) + self.position_embedding(positions)

    def embedding_tables(self) -> EmbeddingTables:
        return EmbeddingTables(self.embedding.floats(), positions=self.position_embedding.weight)

    def run_layers(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        for layer in self.layers:  # positions were added at the start: the layers no longer need them
            x = layer(x, attention)
        return x

    def parts(self) -> list[LayerParts]:
        return [cast(Block, layer).parts() for layer in self.layers]
