"""GLM-4.5 (GLM-4.5 Team 2025): experts whose scores are sigmoids (DeepSeek V3), next to an MLP that all tokens share.

The first layers have a dense MLP alone. Half of each head turns, its values paired as Phi's are, so the rows of queries
and keys are reordered when they are loaded (`rope.half_order`). Behind the last layer, checkpoints have one more that
drafts tokens; it is not read.
"""

import torch

from gradus.models.config import ModelConfig
from gradus.models.families import llama, qwen3
from gradus.models.families.mixtures.block import Block
from gradus.models.families.mixtures.qwen import EXPERTS
from gradus.models.layers import LinearFactory
from gradus.models.rope import half_order
from gradus.models.source import Either, Ignored, Reordered, Source

ATTENTION, MLP = "model.layers.{}.self_attn", "model.layers.{}.mlp"
SHARED = f"{MLP}.shared_experts"
WEIGHTS: dict[str, Source] = (
    qwen3.WEIGHTS
    | EXPERTS
    | {
        "layers.{}.experts.router.correction": f"{MLP}.gate.e_score_correction_bias",
        "layers.{}.gate_up.weight": (
            Either(f"{MLP}.gate_proj.weight", f"{SHARED}.gate_proj.weight"),
            Either(f"{MLP}.up_proj.weight", f"{SHARED}.up_proj.weight"),
        ),
        "layers.{}.down.weight": Either(f"{MLP}.down_proj.weight", f"{SHARED}.down_proj.weight"),
    }
)


class Glm4Moe(llama.Llama):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS
    block = Block

    def __init__(
        self, config: ModelConfig, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__(config, linear, dtype, device)
        self.ignored = (*type(self).ignored, Ignored(rf"^model\.layers\.{config.num_layers}\."))
        rope = next((rope for rope in config.ropes if rope is not None), None)
        if rope is not None and rope.turned is not None:
            self.weights = {**WEIGHTS, **_by_half(config, rope.turned)}


def _by_half(config: ModelConfig, turned: int) -> dict[str, Source]:
    """The sources of queries, keys and their norms, with the values of each head paired by half."""
    head = half_order(config.head_dim, turned)

    def reordered(name: str, heads: int) -> Reordered:
        rows = tuple(number * config.head_dim + value for number in range(heads) for value in head)
        return Reordered(f"{ATTENTION}.{name}", rows)

    found: dict[str, Source] = {
        f"layers.{{}}.qkv.{kind}": (
            reordered(f"q_proj.{kind}", config.num_heads),
            reordered(f"k_proj.{kind}", config.num_kv_heads),
            f"{ATTENTION}.v_proj.{kind}",
        )
        for kind in ("weight", "bias")
    }
    norms = {f"layers.{{}}.heads.{name}.weight": reordered(f"{name}.weight", 1) for name in ("q_norm", "k_norm")}
    return found | norms
