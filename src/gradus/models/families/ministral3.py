"""Ministral 3 and Mistral Small 3 (Mistral AI 2025): Llama, in checkpoints that also hold a vision tower.

In Ministral 3, queries grow with their position, so that scores stay as sharp in contexts longer than the trained one.
"""

from gradus.models.families import llama
from gradus.models.source import TEXT_PART, VISION


class Ministral3(llama.Llama):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    renamed = TEXT_PART
    ignored = (*llama.Llama.ignored, VISION)
