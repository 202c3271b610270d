"""Does any request get slower where others' drafts are verified? Each request, timed with drafts and without.

    export PYTHONPATH=src:.
    python3 benchmarks/each_request.py --model smollm2-135m --out "$OUT"/each_request.json

Eight requests at once, as of a chat, greedy and at temperature 0.8: texts that are copied, chat, open questions, and
two that copy among six that do not; all submitted together, and arriving one by one. Engines without drafts and with
n-grams take turns, in an order that turns round with each round. Per request: the seconds from its submission to its
last token, as the median over the rounds of the ratio of both engines in a round. At temperature 0.8 both engines draw
the same tokens, so both do the same work. `--heads DIR` adds an engine that drafts with trained heads.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.speculation import texts
from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.engine.request import SamplingParams
from gradus.text.llm import LLM

BATCH, OUTPUT, GAP_S = 8, 160, 0.02
MIXES: dict[str, tuple[str, ...]] = {
    "copy": ("copy",) * BATCH,
    "chat": ("chat",) * BATCH,
    "open": ("open",) * BATCH,
    "two copy": ("copy",) * 2 + ("open",) * 6,
    "alone, copy": ("copy",),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--heads", action="append", default=[], help="a folder of trained heads; may be repeated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=int, default=OUTPUT, help="tokens of each answer")
    parser.add_argument("--seconds", type=float, default=240, help="no mix begins after so many")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    rows, began = [], time.monotonic()
    settings = {"device": asked.device, "max_sequences": BATCH, "context_length": 1024, "switch_off": ("prefix_cache",)}
    engines = {"none": LLM(asked.model, **settings), "ngram": LLM(asked.model, speculate="ngram", **settings)}
    engines |= {Path(heads).name: LLM(asked.model, speculate=f"heads:{heads}", **settings) for heads in asked.heads}
    for temperature in (0.0, 0.8):
        for name, kinds in MIXES.items():
            for gap in (0.0, GAP_S) if len(kinds) > 1 else (0.0,):
                if time.monotonic() - began < asked.seconds:
                    rows += compared(engines, name, kinds, temperature, gap, asked.rounds, asked.output)
    made = {
        "commit": asked.commit or commit(),
        "model": asked.model,
        **fingerprint(engines["none"].device, quick=True),
        "rows": rows,
    }
    if asked.out is not None:
        asked.out.write_text(json.dumps(made, indent=1), encoding="utf-8")
    return 0


def compared(
    engines: dict[str, LLM], name: str, kinds: Sequence[str], temperature: float, gap: float, rounds: int, output: int
) -> list[dict[str, Any]]:
    """A row for each engine that drafts: of each request, how many times as fast it was as without drafts."""
    asked = [{"role": "user", "content": texts(kind)[number]} for number, kind in enumerate(kinds)]
    prompts = [engines["none"].chat_prompt([message]) for message in asked]
    ratios: dict[str, list[list[float]]] = {each: [] for each in engines if each != "none"}
    for number in range(rounds + 1):  # the first one warms up
        order = [*engines] if number % 2 else [*reversed(engines)]
        took = {each: served(engines[each], prompts, temperature, gap, output) for each in order}
        if number:
            for each, found in ratios.items():
                found.append([plain / mine for plain, mine in zip(took["none"], took[each], strict=True)])
    rows = []
    for each, found in ratios.items():
        of_each = [round(median(column), 3) for column in zip(*found, strict=True)]
        kept = {kind: [ratio for ratio, mine in zip(of_each, kinds, strict=True) if mine == kind] for kind in {*kinds}}
        row = {"mix": name, "engine": each, "temperature": temperature, "gap_s": gap, "of_each": of_each}
        row |= {"least": min(of_each), "by_kind": {kind: round(median(of), 3) for kind, of in kept.items()}}
        speculation = engines[each].metrics().speculation
        row["why"] = "" if speculation is None else speculation.why
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def served(llm: LLM, prompts: Sequence[Sequence[int]], temperature: float, gap: float, output: int) -> list[float]:
    """Seconds of each request, from its submission to its last token."""
    begun: dict[str, float] = {}
    ended: dict[str, float] = {}
    start, order = time.perf_counter(), list[str]()
    while len(ended) < len(prompts):
        number = len(order)
        if number < len(prompts) and time.perf_counter() - start >= number * gap:
            params = SamplingParams(max_tokens=output, temperature=temperature, seed=number, ignore_eos=True)
            request = llm.submit(prompts[number], params)
            begun[request] = time.perf_counter()
            order.append(request)
            continue
        for delta in llm.step() if llm.has_work else ():
            if delta.completion is not None:
                ended[delta.request_id] = time.perf_counter()
    return [ended[each] - begun[each] for each in order]


if __name__ == "__main__":
    sys.exit(ran(main))
