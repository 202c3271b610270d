"""Mixtral (Jiang et al. 2024): Mistral with eight experts. Each token takes two."""

from gradus.models.families import llama
from gradus.models.families.mixtures.block import Block
from gradus.models.source import ByExpert, Source

MOE = "model.layers.{}.block_sparse_moe"
EXPERT = f"{MOE}.experts.{{expert}}"
WEIGHTS: dict[str, Source] = llama.WEIGHTS | {
    "layers.{}.experts.router.product.weight": f"{MOE}.gate.weight",
    "layers.{}.experts.up.weight": (ByExpert(f"{EXPERT}.w1.weight"), ByExpert(f"{EXPERT}.w3.weight")),
    "layers.{}.experts.down.weight": ByExpert(f"{EXPERT}.w2.weight"),
}


class Mixtral(llama.Llama):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS
    block = Block
