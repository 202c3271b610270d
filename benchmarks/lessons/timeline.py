"""Record engine steps on host and GPU: p09, the final engine without overlap, and with it, with the same work.

    PYTHONPATH=src:. python3 benchmarks/lessons/timeline.py --model random:qwen3-0.6b --out "$OUT"/timeline.json

Two scenes, each played once to warm up and once to record: a few sequences decode while a long prompt arrives; many
sequences decode. The figure of phases/p10_cuda_graphs is drawn from the second one (`gradus.course.figures.timeline`).
Times are microseconds from the scene's first recorded step. What a step's kernels take is measured apart, by torch's
profiler, which slows the host and not the kernels.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from gradus.bench.contenders.workbench import Room, Workbench
from gradus.bench.measure.drive import synchronize
from gradus.bench.measure.fingerprint import commit as current_commit
from gradus.bench.measure.fingerprint import fingerprint
from gradus.bench.measure.memory import release
from gradus.bench.measure.timeline import StepRecord, Timeline
from gradus.bench.run.profiler import without_markers
from gradus.bench.run.script import ran
from gradus.bench.statistics import significant
from gradus.bench.workloads import burst
from gradus.engine.engine import Engine
from gradus.engine.request import Request, SamplingParams

MAX_BYTES = 60_000
PROFILED = 8  # steps
FIELDS = (
    "number", "under_way", "prefills", "decodes", "tokens", "rows", "pages", "waiting",
    "schedule", "schedule_end", "run", "run_end", "commit", "commit_end", "wait", "gpu", "gpu_end",
)  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """`decodes` sequences with prompts of `prompt` tokens have all begun; then `before` steps are recorded, a prompt of
    `arrives` tokens arrives (0: none does), and `after` more steps are recorded."""

    name: str
    decodes: int
    prompt: int
    arrives: int
    before: int
    after: int

    @property
    def answer(self) -> int:
        """The tokens that a sequence may generate: more than there are steps."""
        return 4 * (self.before + self.after + PROFILED)

    @property
    def longest(self) -> int:
        return max(self.prompt, self.arrives) + self.answer

    @property
    def positions(self) -> int:
        return (self.decodes + 1) * (self.prompt + self.answer) + self.arrives


SCENES = (
    Scene("a prompt arrives", decodes=16, prompt=128, arrives=4000, before=12, after=16),
    Scene("decodes", decodes=64, prompt=256, arrives=0, before=12, after=20),
)
QUICK = (
    Scene("a prompt arrives", decodes=2, prompt=8, arrives=40, before=3, after=4),
    Scene("decodes", decodes=4, prompt=8, arrives=0, before=6, after=8),
)

ENGINES = ("p09", "final-overlap", "final")  # as `gradus.bench` names contenders


def record(bench: Workbench, scenes: Sequence[Scene], engines: Sequence[str] = ENGINES) -> list[dict[str, Any]]:
    """Play every scene on every engine. Returns one recording each: scene, engine, kernels_us, fields and steps.

    kernels_us: the time of the kernels of a step of decodes; None on a CPU.
    """
    config = bench.model.config
    longest = max(scene.longest for scene in scenes)
    if longest > config.context_length:
        raise SystemExit(f"the scenes need a context of {longest} tokens, the model has {config.context_length}")
    room = Room(longest, max(scene.decodes for scene in scenes) + 1, max(scene.positions for scene in scenes))
    recordings = []
    for name in engines:
        engine = bench.engine(name, room)
        for scene in scenes:
            play(engine, scene, bench.device, seed=1)
            timeline, kernels = play(engine, scene, bench.device, seed=2)
            about = {"scene": scene.name, "engine": name, "kernels_us": None if scene.arrives else kernels}
            recordings.append(about | {"fields": FIELDS, "steps": rows(timeline.records)})
        del engine
        release(bench.device)
    return recordings


def play(engine: Engine, scene: Scene, device: torch.device, seed: int) -> tuple[Timeline, float | None]:
    """Play a scene. Returns the recording, and the time of a step's kernels."""
    answering: set[str] = set()

    def submit(count: int, prompt: int, prefix: str) -> None:
        for index, arrival in enumerate(burst(count, prompt, scene.answer, seed).arrivals(engine.limits.vocab_size)):
            params = SamplingParams(max_tokens=arrival.max_tokens, ignore_eos=True)
            engine.submit(Request.create(f"{prefix}{index}", arrival.prompt, params, engine.limits))

    def steps(count: int) -> None:
        for _ in range(count):
            answering.update(output.request_id for output in engine.step())

    submit(scene.decodes, scene.prompt, "decode ")
    while len(answering) < scene.decodes:
        steps(1)
    kernels = kernel_microseconds(lambda: steps(PROFILED), device) if device.type == "cuda" else None
    steps(4)  # the profiler's traces have gone
    timeline = Timeline(device)
    timeline.watch(engine)
    steps(scene.before)
    if scene.arrives:
        submit(1, scene.arrives, "arrives ")
    steps(scene.after)
    timeline.leave(engine)
    assert timeline.records[-1].decodes >= scene.decodes, "a sequence ended before the scene did"
    for name in answering | {"arrives 0"}:
        engine.cancel(name)
    while engine.has_work:
        engine.step()
    return timeline, kernels


def kernel_microseconds(work: Callable[[], None], device: torch.device) -> float:
    """Measure the sum of the kernels' times per step, over the PROFILED steps that `work` takes."""
    with without_markers(), profile(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded:
        work()
        synchronize(device)
    kernels = [event for event in recorded.key_averages() if str(event.device_type).endswith("CUDA")]
    return significant(sum(event.self_device_time_total for event in kernels) / PROFILED)


def rows(records: Sequence[StepRecord]) -> list[list[float | int | None]]:
    """One list per step, in the order of FIELDS."""
    steps = list(records)
    origin = steps[0].schedule[0]

    def since(seconds: float) -> float:
        return round(1e6 * (seconds - origin), 1)

    return [
        [
            *(step.number, step.under_way, step.prefills, step.decodes, step.tokens, step.rows, step.pages),
            step.waiting,
            *(since(time) for part in (step.schedule, step.run, step.commit) for time in part),
            round(1e6 * step.wait, 1),
            *((None, None) if step.gpu is None else map(since, step.gpu)),
        ]
        for step in steps
    ]


def written(found: dict[str, Any]) -> str:
    """Format JSON with one step per line."""
    text = json.dumps(found, ensure_ascii=False)
    return text.replace(", [", ",\n[").replace('"steps": [[', '"steps": [\n[').replace('{"scene"', '\n{"scene"') + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="random:qwen3-0.6b")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", help="the measured commit; by default the one checked out")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: a few sequences, short prompts")
    options = parser.parse_args()
    bench = Workbench.open(options.model, options.device, options.dtype)
    scenes = QUICK if options.quick else SCENES
    found = {
        "model": options.model,
        "dtype": bench.dtype,
        "quick": options.quick,
        "commit": options.commit or current_commit(),
        **fingerprint(bench.device, quick=True),
        "scenes": [asdict(scene) for scene in scenes],
        "recordings": record(bench, scenes),
    }
    text = written(found)
    assert len(text.encode()) <= MAX_BYTES, f"{len(text.encode())} bytes are too many to commit"
    options.out.write_text(text, encoding="utf-8")
    print(f"{options.out}: {len(found['recordings'])} recordings, {len(text.encode())} bytes")


if __name__ == "__main__":
    sys.exit(ran(main))
