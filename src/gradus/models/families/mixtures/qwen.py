"""Qwen3-MoE (Qwen Team 2025): Qwen3 with experts; and Qwen2-MoE (2024): Qwen2 with experts and an MLP for all tokens.

The shared MLP of Qwen2-MoE has a gate: one number per token, the sigmoid of a product with the token's row.
"""

from gradus.models.families import llama, qwen3
from gradus.models.families.mixtures.block import Block
from gradus.models.source import ByExpert, Either, Source

MLP, EXPERT = "model.layers.{}.mlp", "model.layers.{}.mlp.experts.{expert}"
SHARED = f"{MLP}.shared_expert"
EXPERTS: dict[str, Source] = {
    "layers.{}.experts.router.product.weight": f"{MLP}.gate.weight",
    "layers.{}.experts.up.weight": (ByExpert(f"{EXPERT}.gate_proj.weight"), ByExpert(f"{EXPERT}.up_proj.weight")),
    "layers.{}.experts.down.weight": ByExpert(f"{EXPERT}.down_proj.weight"),
}
"""Names that OLMoE and GLM have too."""
QWEN3_MOE = qwen3.WEIGHTS | EXPERTS
QWEN2_MOE: dict[str, Source] = (
    llama.WEIGHTS
    | EXPERTS
    | {
        "layers.{}.gate_up.weight": (
            Either(f"{MLP}.gate_proj.weight", f"{SHARED}.gate_proj.weight"),
            Either(f"{MLP}.up_proj.weight", f"{SHARED}.up_proj.weight"),
        ),
        "layers.{}.down.weight": Either(f"{MLP}.down_proj.weight", f"{SHARED}.down_proj.weight"),
        "layers.{}.shared_gate.weight": f"{MLP}.shared_expert_gate.weight",
    }
)


class Qwen2Moe(llama.Llama):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = QWEN2_MOE
    block = Block


class Qwen3Moe(llama.Llama):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = QWEN3_MOE
    block = Block
