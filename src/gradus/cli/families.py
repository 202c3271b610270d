"""The families that load and what their shapes cost, as rows: of `gradus models --families`, and of docs/models.md."""

from collections.abc import Sequence
from typing import Any

from gradus.cli.terminal import size
from gradus.execution.memory.footprint import context_bytes, weight_bytes
from gradus.loading.gguf.architectures import ARCHITECTURES
from gradus.models import SHAPES, parameter_count, parameters_per_token
from gradus.models.families.checkpoints import loadable

CONTEXTS = {"8k": 8192, "32k": 32768, "128k": 131072}  # tokens
FAMILY_COLUMNS = ("family", "model_type", "GGUF", "checkpoints")
COST_COLUMNS = ("shape", "parameters", "weights, bfloat16", "context", *(f"cache, {name}" for name in CONTEXTS))
NONE = "–"


def families() -> list[dict[str, Any]]:
    return [
        {
            "family": each.name,
            "model_types": list(each.model_types),
            "gguf": [name for name, stored in ARCHITECTURES.items() if each.name in stored.families],
            "checkpoints": list(each.checkpoints),
        }
        for each in loadable()
    ]


def costs() -> list[dict[str, Any]]:
    """Every shape of a real model. context_bytes: by number of tokens, up to the model's context."""
    return [
        {
            "name": f"random:{name}",
            "family": shape.family,
            "parameters": parameter_count(shape),
            "parameters_per_token": parameters_per_token(shape),
            "weight_bytes": weight_bytes(shape),
            "context_length": shape.context_length,
            "context_bytes": {
                str(tokens): context_bytes(shape, tokens)
                for tokens in CONTEXTS.values()
                if tokens <= shape.context_length
            },
        }
        for name, shape in SHAPES.items()
        if not name.startswith("tiny-")
    ]


def family_cells(row: dict[str, Any]) -> Sequence[str]:
    named = (", ".join(row[key]) or NONE for key in ("model_types", "gguf", "checkpoints"))
    return [row["family"], *named]


def cost_cells(row: dict[str, Any]) -> Sequence[str]:
    taken = row["context_bytes"]
    return [
        row["name"],
        counts(row),
        size(row["weight_bytes"]),
        str(row["context_length"]),
        *(size(taken[str(tokens)]) if str(tokens) in taken else NONE for tokens in CONTEXTS.values()),
    ]


def counts(row: dict[str, Any]) -> str:
    """A shape's parameters, and with experts those that a token takes."""
    whole, taken = row["parameters"], row["parameters_per_token"]
    return count(whole) if taken == whole else f"{count(whole)}, {count(taken)} per token"


def count(parameters: int) -> str:
    return f"{parameters / 1e9:.1f} B" if parameters >= 0.95e9 else f"{parameters / 1e6:.3g} M"
