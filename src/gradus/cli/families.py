"""The families that load and what their shapes cost, as rows: of `gradus models --families`, and of docs/models.md."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gradus.cli.terminal import size
from gradus.execution.memory.footprint import KV_BYTES, context_bytes, weight_bytes
from gradus.loading.gguf.architectures import ARCHITECTURES
from gradus.models import SHAPES, parameter_count, parameters_per_token
from gradus.models.config import ModelConfig
from gradus.models.families.checkpoints import loadable

CONTEXTS = {f"{thousands}k": thousands * 1024 for thousands in (8, 16, 32, 64, 128)}  # tokens
FAMILY_COLUMNS = ("family", "model_type", "GGUF", "checkpoints")
COST_COLUMNS = ("shape", "parameters", "weights, bfloat16", "context")
CONTEXT_COLUMNS = ("shape", "layers", *CONTEXTS)
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
    """Every shape of a real model. layers: with keys and values of their own, by window. context_bytes: by format and
    number of tokens, up to the model's context."""
    return [
        {
            "name": f"random:{name}",
            "family": shape.family,
            "parameters": parameter_count(shape),
            "parameters_per_token": parameters_per_token(shape),
            "weight_bytes": weight_bytes(shape),
            "context_length": shape.context_length,
            "layers": layers(shape),
            "context_bytes": {
                kind: {
                    str(tokens): context_bytes(shape, tokens, *per)
                    for tokens in CONTEXTS.values()
                    if tokens <= shape.context_length
                }
                for kind, per in KV_BYTES.items()
            },
        }
        for name, shape in SHAPES.items()
        if not name.startswith("tiny-")
    ]


def layers(shape: ModelConfig) -> list[dict[str, int | None]]:
    """Count the layers that store keys and values, by window; None: they see everything."""
    counts = Counter(shape.windows[layer] for layer in range(shape.num_layers) if shape.stores_kv(layer))
    return [{"count": counts[window], "window": window} for window in sorted(counts, key=lambda each: each or 0)]


def family_cells(row: dict[str, Any]) -> Sequence[str]:
    named = (", ".join(row[key]) or NONE for key in ("model_types", "gguf", "checkpoints"))
    return [row["family"], *named]


def cost_cells(row: dict[str, Any]) -> Sequence[str]:
    return [row["name"], counts(row), size(row["weight_bytes"]), str(row["context_length"])]


def context_cells(row: dict[str, Any]) -> Sequence[str]:
    """A shape's layers, and the bytes of a context of each length, in bfloat16 and in fp8."""
    by_kind = row["context_bytes"].values()
    cells = ([taken[str(tokens)] for taken in by_kind if str(tokens) in taken] for tokens in CONTEXTS.values())
    return [row["name"], _by_window(row["layers"]), *(" / ".join(map(size, each)) or NONE for each in cells)]


def _by_window(found: Sequence[dict[str, Any]]) -> str:
    if [each["window"] for each in found] == [None]:
        return str(found[0]["count"])
    kinds = ("full" if each["window"] is None else f"of {each['window']:,}" for each in found)
    return ", ".join(f"{each['count']} {kind}" for each, kind in zip(found, kinds, strict=True))


def counts(row: dict[str, Any]) -> str:
    """A shape's parameters, and with experts those that a token takes."""
    whole, taken = row["parameters"], row["parameters_per_token"]
    return count(whole) if taken == whole else f"{count(whole)}, {count(taken)} per token"


def count(parameters: int) -> str:
    return f"{parameters / 1e9:.1f} B" if parameters >= 0.95e9 else f"{parameters / 1e6:.3g} M"
