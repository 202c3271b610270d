"""GPT-2 (Radford et al. 2019): openai-community/gpt2, gpt2-medium, gpt2-xl."""

from typing import Any


def gpt2(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
    }
