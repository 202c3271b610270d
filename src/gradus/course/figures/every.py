"""Every figure of the lessons, of the README and of docs/architecture.md, with the file that it is drawn into.

A test compares the files in the repository with what is drawn here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gradus.course.drawing import Drawing
from gradus.course.figures import (
    architecture,
    budget,
    first,
    forward,
    graphs,
    kernels,
    paging,
    prefix,
    quantization,
    scene,
    speculation,
    timeline,
)
from gradus.course.figures.experts import batches, sorting
from gradus.course.figures.parallel import cuts, pipeline, ranks, roofline
from gradus.course.figures.serving import blocked, curve, loops, replicas, sides, steps, streams, way
from gradus.course.figures.structured import automaton, launches, masks


@dataclass(frozen=True, slots=True)
class Figure:
    """path: in the repository."""

    path: str
    draw: Callable[[], Drawing]


FIGURES = [
    Figure("phases/p00_baseline/figures/whole.svg", forward.whole),
    Figure("phases/p00_baseline/figures/rotated.svg", forward.rotated),
    Figure("phases/p00_baseline/figures/triangle.svg", forward.triangle),
    Figure("phases/p00_baseline/figures/recomputed.svg", first.recomputed),
    Figure("phases/p01_kv_cache/figures/kept.svg", first.kept),
    Figure("phases/p01_kv_cache/figures/contiguous.svg", first.contiguous),
    Figure("phases/p02_static_batching/figures/padded.svg", first.padded),
    Figure("phases/p03_continuous_batching/figures/slots.svg", first.slots),
    Figure("phases/p04_paged_cache/figures/memory.svg", paging.memory),
    Figure("phases/p04_paged_cache/figures/block_table.svg", paging.block_table),
    Figure("phases/p04_paged_cache/figures/windows.svg", paging.windows),
    Figure("phases/p04_paged_cache/figures/preemption.svg", paging.preemption),
    Figure("phases/p05_prefix_cache/figures/growing.svg", prefix.growing),
    Figure("phases/p05_prefix_cache/figures/evicting.svg", prefix.evicting),
    Figure("phases/p06_chunked_prefill/figures/steps.svg", budget.steps),
    Figure("phases/p06_chunked_prefill/figures/budget.svg", budget.budget),
    Figure("phases/p07_quantization/figures/rows.svg", quantization.rows),
    Figure("phases/p07_quantization/figures/grids.svg", quantization.grids),
    Figure("phases/p07_quantization/figures/search.svg", quantization.search),
    Figure("phases/p07_quantization/figures/columns.svg", quantization.columns),
    Figure("phases/p07_quantization/figures/bits.svg", quantization.bits),
    Figure("phases/p07_quantization/figures/points.svg", quantization.points),
    Figure("phases/p08_speculation/figures/verified.svg", speculation.verified),
    Figure("phases/p08_speculation/figures/rules.svg", speculation.rules),
    Figure("phases/p08_speculation/figures/tokens.svg", speculation.tokens),
    Figure("phases/p08_speculation/figures/payoff.svg", speculation.payoff),
    Figure("phases/p09_triton_attention/figures/traffic.svg", kernels.traffic),
    Figure("phases/p09_triton_attention/figures/items.svg", kernels.items),
    Figure("phases/p09_triton_attention/figures/grid.svg", kernels.grid),
    Figure("phases/p09_triton_attention/figures/layer.svg", kernels.layer),
    Figure("phases/p09_triton_attention/figures/chunks.svg", kernels.chunks),
    Figure("phases/p10_cuda_graphs/figures/replay.svg", graphs.replay),
    Figure("phases/p10_cuda_graphs/figures/inside.svg", graphs.inside),
    Figure("phases/p10_cuda_graphs/figures/overlap.svg", graphs.overlap),
    Figure("phases/p11_structured_output/figures/automaton.svg", automaton.automaton),
    Figure("phases/p11_structured_output/figures/launches.svg", launches.launches),
    Figure("phases/p11_structured_output/figures/legal.svg", masks.legal),
    Figure("phases/p11_structured_output/figures/probability.svg", masks.probability),
    Figure("phases/p12_parallelism/figures/cuts.svg", cuts.cuts),
    Figure("phases/p12_parallelism/figures/pipeline.svg", pipeline.pipeline),
    Figure("phases/p12_parallelism/figures/ranks.svg", ranks.ranks),
    Figure("phases/p12_parallelism/figures/roofline.svg", roofline.roofline),
    Figure("phases/p12_parallelism/figures/measured.svg", roofline.measured),
    Figure("phases/p13_serving/figures/sides.svg", sides.sides),
    Figure("phases/p13_serving/figures/way.svg", way.way),
    Figure("phases/p13_serving/figures/blocked.svg", blocked.blocked),
    Figure("phases/p13_serving/figures/streams.svg", streams.streams),
    Figure("phases/p13_serving/figures/curve.svg", curve.curve),
    Figure("phases/p13_serving/figures/loops.svg", loops.loops),
    Figure("phases/p13_serving/figures/steps.svg", steps.steps),
    Figure("phases/p13_serving/figures/replicas.svg", replicas.replicas),
    Figure("phases/p14_experts/figures/sorted.svg", sorting.sorting),
    Figure("phases/p14_experts/figures/distinct.svg", batches.distinct),
    Figure("docs/figures/architecture.svg", architecture.way),
    Figure("docs/figures/three_chats.svg", scene.three_chats),
]
if timeline.recorded():  # on a GPU: without its recording there is nothing to draw
    FIGURES.append(Figure("phases/p10_cuda_graphs/figures/timeline.svg", timeline.steps))


def write_all(root: Path) -> None:
    for figure in FIGURES:
        path = root / figure.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(figure.draw().svg(), encoding="utf-8")
