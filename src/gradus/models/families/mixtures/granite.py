"""Granite 3 with experts (Granite Team 2024), perhaps next to an MLP that all tokens share; and Granite 4 with both.

Checkpoints hold all experts of a layer in two tensors. Granite 4 belongs here where every layer attends.
"""

from gradus.models.families import granite
from gradus.models.families.mixtures.block import Block
from gradus.models.source import Source, Stack

MOE = "model.layers.{}.block_sparse_moe"
WEIGHTS: dict[str, Source] = granite.HYBRID_WEIGHTS | {
    "layers.{}.experts.router.product.weight": f"{MOE}.router.layer.weight",
    "layers.{}.experts.up.weight": Stack(f"{MOE}.input_linear.weight", halves=True),
    "layers.{}.experts.down.weight": Stack(f"{MOE}.output_linear.weight"),
}


class GraniteMoe(granite.Granite):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS
    block = Block
