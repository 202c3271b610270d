"""Measure p07's formats and its cache in fewer bits, on a real model: what each loses.

    PYTHONPATH=src:. python3 benchmarks/lessons/quantization_lesson.py --out benchmarks/lessons/quantization_lesson.json
    PYTHONPATH=src:. python3 benchmarks/lessons/quantization_lesson.py --model smollm2-135m --parts caches --out …

Nothing here has a clock: the numbers are the same on every machine, up to the order of sums. Parts that are not asked
for stay as the file has them. `table` and `sentence` are what the lesson shows.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradus.bench.run.script import ran
from gradus.loading import load_model, open_checkpoint
from gradus.models import Model
from phases.p07_quantization import kv
from phases.p07_quantization.formats import E5M2, fp8, mxfp4, nvfp4
from phases.p07_quantization.one_layer import WAYS, Way
from phases.p07_quantization.quality import JUDGED, SEEN, inputs_of, judge, log_probabilities, rounded

MODELS = ("smollm2-135m",)
TOKENS = 512

FORMATS: dict[str, tuple[float, Way]] = {  # bits per weight, with its share of the scales
    "int8, a scale per row": (8.0, lambda x, w, bits: WAYS["a scale per row"](x, w, 8)),
    "E4M3, a scale per matrix": (8.0, lambda x, w, bits: fp8(w)),
    "E4M3, a scale per row": (8.0, lambda x, w, bits: fp8(w, w.shape[1])),
    "E5M2, a scale per row": (8.0, lambda x, w, bits: fp8(w, w.shape[1], E5M2)),
    "int4, a grid per 64": (4.5, lambda x, w, bits: WAYS["a grid per group of 64"](x, w, 4)),
    "NVFP4": (4.5, lambda x, w, bits: nvfp4(w)),
    "MXFP4": (4.25, lambda x, w, bits: mxfp4(w)),
}


def as_it_was(x: Tensor) -> Tensor:
    return x


CACHES: dict[str, tuple[kv.Way, kv.Way]] = {
    "both in int8": (kv.int8, kv.int8),
    "both in E4M3": (kv.fp8, kv.fp8),
    "values in int4": (as_it_was, kv.int4),
    "keys in int4": (kv.int4, as_it_was),
    "keys in int4, a grid per channel": (kv.int4_by_channel, as_it_was),
    "keys by channel, values by token, in int4": (kv.int4_by_channel, kv.int4),
}


class Listening(kv.RoundedCache):
    """Rounds nothing, and keeps how uneven the channels of keys and of values are, of each layer."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, as_it_was, as_it_was)
        self.heard: list[tuple[float, float]] = []

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        assert k is not None and v is not None, "a model whose layers have keys of their own"
        self.heard.append((kv.loudness(k), kv.loudness(v)))
        return super().attend(layer, q, k, v, sinks)


def formats(model: Model, seen: list[int], judged: list[int]) -> list[dict[str, Any]]:
    inputs, wanted = inputs_of(model, seen), log_probabilities(model, judged)
    ways: dict[str, tuple[float, Way]] = {"not rounded": (16.0, lambda x, w, bits: w), **FORMATS}
    found = []
    for name, (bits, way) in ways.items():
        made = rounded(model, inputs, way, 0)
        found.append({"way": name, "bits": bits, **numbers(wanted, log_probabilities(made, judged), judged)})
        print(found[-1], flush=True)
    return found


def caches(model: Model, judged: list[int]) -> list[dict[str, Any]]:
    wanted = log_probabilities(model, judged)
    found = []
    for name, (keys, values) in {"not rounded": (as_it_was, as_it_was), **CACHES}.items():
        said = log_probabilities(model, judged, kv.RoundedCache(model.config, keys, values))
        found.append({"way": name, **numbers(wanted, said, judged)})
        print(found[-1], flush=True)
    return found


def unevenness(model: Model, judged: list[int]) -> dict[str, float]:
    """Average over the layers, and the loudest one, of keys and of values."""
    listening = Listening(model.config)
    log_probabilities(model, judged, listening)
    keys, values = zip(*listening.heard, strict=True)
    mean: Callable[[Sequence[float]], float] = lambda each: sum(each) / len(each)  # noqa: E731
    return {"keys": mean(keys), "most keys": max(keys), "values": mean(values), "most values": max(values)}


def numbers(wanted: Tensor, found: Tensor, tokens: list[int]) -> dict[str, float]:
    divergence, same, perplexity = judge(wanted, found, tokens)
    return {"divergence": divergence, "same": same, "perplexity": perplexity}


PARTS = ("unevenness", "caches", "formats")


@torch.inference_mode()
def measured(name: str, parts: Sequence[str]) -> dict[str, Any]:
    checkpoint = open_checkpoint(name)
    assert checkpoint.tokenizer is not None, "a model that reads text"
    model = load_model(checkpoint, dtype=torch.float32, device="cpu")
    seen, judged = (checkpoint.tokenizer.encode(text.read_text("utf-8"))[:TOKENS] for text in (SEEN, JUDGED))
    ways: dict[str, Callable[[], Any]] = {
        "unevenness": lambda: unevenness(model, judged),
        "caches": lambda: caches(model, judged),
        "formats": lambda: formats(model, seen, judged),
    }
    return {part: ways[part]() for part in parts}


def table(found: dict[str, Any], part: str) -> str:
    """The lesson's table of one part: a row for each way, and the models that have the part side by side."""
    names = [name for name in found if part in found[name]]
    head = ["", *(f"{name}: {what}" for name in names for what in ("KL divergence", "same best token"))]
    lines = [head, ["---", *(["---:"] * (len(head) - 1))]]
    for rows in zip(*(found[name][part] for name in names), strict=True):
        values = [text for row in rows for text in (f"{row['divergence']:.4f}", f"{row['same']:.1%}")]
        lines.append([rows[0]["way"], *values])
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def sentence(found: dict[str, Any]) -> str:
    """How uneven channels are, for each model."""
    each = []
    for name, model in found.items():
        uneven = model["unevenness"]
        each.append(f"{uneven['keys']:.1f} times for keys and {uneven['values']:.1f} for values in {name}")
    return f"{'; '.join(each)}."


def main() -> int:
    parser = argparse.ArgumentParser(description="What p07's formats and caches lose on real models.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", action="append", help="one or more; all of the lesson's otherwise")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    asked = parser.parse_args()
    found = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.is_file() else {}
    for name in asked.model or MODELS:
        found[name] = found.get(name, {}) | measured(name, asked.parts)
    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(ran(main))
