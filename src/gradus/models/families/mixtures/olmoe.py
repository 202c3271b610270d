"""OLMoE (Muennighoff et al. 2024): Llama with 64 small experts, and one norm for all of a token's query heads.

Another norm serves all its key heads. Unlike in OLMo 2, norms are in front of attention and experts.
"""

from gradus.models.families import llama, qwen3
from gradus.models.families.mixtures.block import Block
from gradus.models.families.mixtures.qwen import EXPERTS


class Olmoe(llama.Llama):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = qwen3.WEIGHTS | EXPERTS
    block = Block
