"""The time per step of Llama-3.1-8B: on 1 to 8 devices, as p12's program computes it, and on two H100, as measured."""

from typing import Any

from gradus import phases
from gradus.course.drawing import BOX, KEPT, NEW, WASTE, Drawing
from gradus.course.figures.parallel.recorded import two_h100
from gradus.models.shapes import SHAPES

MODEL, DEVICES, BATCHES = "llama-3.1-8b", (1, 2, 4, 8), (1, 64)
LENGTHS = {1: 256, 64: 640}
"""Tokens of each sequence in the middle of its answer, in what was measured on two H100: by requests."""
LEFT, ROW, BAR = 178, 29, 22
SPACE = 800 - LEFT - 156


def roofline() -> Drawing:
    """With NCCL's sums, and with one launch per sum: for one request, and for 64."""
    module = phases.find("p12").module("roofline")
    panels = {batch: [_computed(module, devices, batch) for devices in DEVICES] for batch in BATCHES}
    said = "; ".join(
        f"batch {batch}: "
        + ", ".join(f"{1e3 * nccl.seconds:.1f} or {1e3 * launch.seconds:.1f} ms" for nccl, launch in found)
        for batch, found in panels.items()
    )
    height = 2 * (7 * ROW + 42)
    drawing = Drawing(
        f"Step of Llama-3.1-8B on 1, 2, 4, 8 devices with NCCL or one launch, computed: {said}", height + 34
    )
    scale = SPACE / (1e3 * max(found[0][0].seconds for found in panels.values()))
    y = 20.0
    for batch, found in panels.items():
        drawing.words(0, y, "one request" if batch == 1 else f"{batch} requests", bold=True)
        y += 12
        for devices, (nccl, launch) in zip(DEVICES, found, strict=True):
            rows = [(f"{devices}, NCCL", nccl), (f"{devices}, one launch", launch)]
            rows = [("1 device", nccl)] if devices == 1 else rows
            for name, one in rows:
                parts = ((one.weights, NEW), (one.cache, KEPT), (one.sums, WASTE))
                _bar(
                    drawing,
                    y,
                    name,
                    parts,
                    f"{1e3 * one.seconds:.2f} ms, {found[0][0].seconds / one.seconds:.2f}×",
                    scale,
                )
                y += ROW
        y += 30
    drawing.legend(height + 26, [(NEW, "weights"), (KEPT, "cache"), (WASTE, "sums")])
    return drawing


def measured() -> Drawing:
    """Two H100: what the formula says, and what the engine needed."""
    module = phases.find("p12").module("roofline")
    rows = []
    for batch in BATCHES:
        times = two_h100(batch)
        for devices, took in zip((1, 2), times, strict=True):
            one = module.step(SHAPES[MODEL], devices, batch, LENGTHS[batch], "h100", module.ONE_LAUNCH)
            rows.append((batch, devices, one, took, times[0] / took))
    said = "; ".join(
        f"{batch} on {devices}: {1e3 * one.seconds:.2f} and {took:.2f} ms" for batch, devices, one, took, _ in rows
    )
    drawing = Drawing(f"Step of Llama-3.1-8B on one H100 and on two, computed and measured, by requests: {said}", 262)
    scale = SPACE / max(took for *_, took, _ in rows)
    y = 20.0
    for batch, devices, one, took, gain in rows:
        if devices == 1:
            drawing.words(0, y, "one request" if batch == 1 else f"{batch} requests", bold=True)
            y += 12
        parts = ((one.weights, NEW), (one.cache, KEPT), (one.sums, WASTE), (took / 1e3 - one.seconds, BOX))
        _bar(drawing, y, f"{devices} H100", parts, f"{took:.2f} ms, {gain:.2f}×", scale)
        y += ROW + (24 if devices == 2 else 0)
    drawing.legend(226, [(NEW, "weights"), (KEPT, "cache"), (WASTE, "sums"), (BOX, "measured, but not computed")])
    drawing.words(0, 256, "Weights, cache and sums are computed from measured rates; the end of a bar is measured.")
    return drawing


def _computed(module: Any, devices: int, batch: int) -> tuple[Any, Any]:
    nccl, launch = (module.step(SHAPES[MODEL], devices, batch, way=way) for way in (module.NCCL, module.ONE_LAUNCH))
    return nccl, launch


def _bar(drawing: Drawing, y: float, name: str, parts: Any, said: str, scale: float) -> None:
    """parts: seconds and kind of each. scale: per millisecond."""
    drawing.words(LEFT - 10, y + 17, name, anchor="end", size=16)
    x = float(LEFT)
    for seconds, kind in parts:
        width = 1e3 * seconds * scale
        if width >= 1:
            drawing.rectangle(x, y, width, BAR, kind, radius=0)
        x += max(width, 0.0)
    drawing.words(x + 10, y + 17, said)
