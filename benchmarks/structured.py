"""Measure what masks cost: 64 answers that keep to JSON schemas, and 64 that do not, in turns on one engine.

    PYTHONPATH=src:. python3 benchmarks/structured.py --tokenizer smollm2-135m --out "$OUT"/structured.json

The model's weights are random, so its texts are noise that obeys the grammar; what counts is the time of a step. Each
schema asks for an array that is longer than the answer may be, so all answers have the same number of tokens. Also
measured: a batch with a few masked rows, and the time to the first token with a schema that was never seen before.
`--tokenizer` names a model whose vocabulary is used; ids beyond it are padding.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.engine.request import SamplingParams
from gradus.engine.structured import Structured
from gradus.loading import open_checkpoint
from gradus.text.llm import LLM

BATCH, PROMPT, OUTPUTS, ROUNDS = 64, 64, (128, 384), 5

FIELDS: list[dict[str, Any]] = [
    {"name": {"type": "string", "maxLength": 24}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    {"city": {"type": "string"}, "temperature": {"type": "number"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    {"id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, "active": {"type": "boolean"}},
    {"date": {"type": "string", "format": "date"}, "tags": {"type": "array", "items": {"type": "string"}}},
    {
        "path": {"type": "string"},
        "line": {"type": "integer"},
        "edit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    {"x": {"type": "number"}, "y": {"type": "number"}, "label": {"type": "string", "maxLength": 8}},
    {"to": {"type": "string", "format": "email"}, "subject": {"type": "string"}, "body": {"type": "string"}},
    {"kind": {"const": "order"}, "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1}},
]


def schema(number: int) -> dict[str, Any]:
    """Return an array of objects that no answer here completes."""
    fields = FIELDS[number % len(FIELDS)]
    item = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    return {"type": "array", "items": item, "minItems": 200}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random:qwen3-0.6b")
    parser.add_argument("--tokenizer", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    checkpoint = open_checkpoint(asked.model)
    if asked.tokenizer:
        checkpoint = replace(checkpoint, tokenizer=open_checkpoint(asked.tokenizer).tokenizer)
    began = time.perf_counter()
    llm = LLM(checkpoint, device=asked.device, max_sequences=asked.batch, context_length=512)
    built = time.perf_counter() - began
    began = time.perf_counter()
    llm.front_end.grammars.vocabulary()
    made: dict[str, Any] = {
        "commit": asked.commit or commit(), "model": asked.model, "vocabulary": asked.tokenizer, "batch": asked.batch,
        **fingerprint(llm.device, quick=True),
        "built_s": round(built, 2), "vocabulary_s": round(time.perf_counter() - began, 3),
        "steps": [row for output in OUTPUTS for row in steps(llm, asked.batch, output)],
        "first_token": first_tokens(llm),
    }  # fmt: skip
    print(json.dumps({key: made[key] for key in ("built_s", "vocabulary_s", "steps", "first_token")}, indent=1))
    if asked.out is not None:
        asked.out.write_text(json.dumps(made, indent=1), encoding="utf-8")
    return 0


def steps(llm: LLM, batch: int, output: int) -> list[dict[str, Any]]:
    """Time batches in which some rows are masked, against the same batch without a mask, in turns."""
    counts = sorted({0, 1, batch // 8, batch})
    took: dict[int, list[float]] = {count: [] for count in counts}
    for number in range(ROUNDS + 1):  # the first round warms up
        for count in counts if number % 2 else reversed(counts):
            seconds = served(llm, batch, count, output)
            if number:
                took[count].append(seconds)
    return [
        {
            "output": output,
            "masked": count,
            "tok_s": round(batch * output / median(seconds), 1),
            "of_none": round(median(none / mine for none, mine in zip(took[0], seconds, strict=True)), 4),
            "seconds": [round(each, 5) for each in seconds],
        }
        for count, seconds in took.items()
    ]


def served(llm: LLM, batch: int, masked: int, output: int) -> float:
    prompts = [[(7 * row + place) % 256 for place in range(PROMPT)] for row in range(batch)]
    free = SamplingParams(max_tokens=output, temperature=0.8, ignore_eos=True)
    params = [
        SamplingParams(max_tokens=output, temperature=0.8, seed=row, structured=Structured(json_schema=schema(row)))
        if row < masked
        else replace(free, seed=row)
        for row in range(batch)
    ]
    began = time.perf_counter()
    done = llm.generate(prompts, params)
    seconds = time.perf_counter() - began
    assert all(len(each.token_ids) == output for each in done), [each.finish_reason for each in done]
    return seconds


def first_tokens(llm: LLM) -> dict[str, Any]:
    """Time a lone request's first token, in milliseconds: without a schema, with one seen before, with a new one."""

    def first(structured: Structured | None) -> float:
        params = SamplingParams(max_tokens=1, temperature=0.8, seed=1, structured=structured)
        began = time.perf_counter()
        llm.generate([[5] * PROMPT], params)
        return 1e3 * (time.perf_counter() - began)

    none, seen, new = list[float](), list[float](), list[float]()
    for number in range(30):
        none.append(first(None))
        seen.append(first(Structured(json_schema=schema(number % 4))))
        fresh = schema(number)
        fresh["items"]["properties"][f"field_{number}"] = {"type": "string", "maxLength": 3 + number}
        new.append(first(Structured(json_schema=fresh)))
    found = {"none": none, "seen": seen, "new": new}
    return {name: {"median": round(median(times), 2), "most": round(max(times), 2)} for name, times in found.items()}


if __name__ == "__main__":
    sys.exit(ran(main))
