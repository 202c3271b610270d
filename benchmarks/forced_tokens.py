"""Answers to one JSON schema, with the tokens that it forces verified as drafts, and one token at a time.

    PYTHONPATH=src:. python3 benchmarks/forced_tokens.py --out benchmarks/forced_tokens.json

One request at a time, at temperature 0.8, so both engines draw the same answers. They take turns, in an order that
turns round with each answer.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.engine.request import SamplingParams
from gradus.engine.structured import Structured
from gradus.text.llm import LLM

NAME = {"type": "string", "maxLength": 12}
FIELDS: dict[str, Any] = {
    "first_name": NAME,
    "family_name": NAME,
    "age_in_years": {"type": "integer", "minimum": 0, "maximum": 150},
    "is_member": {"type": "boolean"},
    "favorite_color": {"enum": ["red", "green", "blue"]},
}
SCHEMA = {"type": "object", "properties": FIELDS, "required": [*FIELDS], "additionalProperties": False}
ASKED = "Invent a person, as JSON."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--answers", type=int, default=12)
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    settings: dict[str, Any] = {"device": asked.device, "max_sequences": 1, "context_length": 1024}
    engines = {"plain": LLM(asked.model, **settings), "drafted": LLM(asked.model, speculate="ngram", **settings)}
    rows = compared(engines, asked.answers)
    made = {
        "commit": asked.commit or commit(), "model": asked.model, **fingerprint(engines["plain"].device, quick=True),
        "ratio": round(median(row["plain_s"] / row["drafted_s"] for row in rows), 3), "rows": rows,
    }  # fmt: skip
    print(f"{made['ratio']} times the rate")
    if asked.out is not None:
        asked.out.write_text(json.dumps(made, indent=1), encoding="utf-8")
    return 0


def compared(engines: dict[str, LLM], answers: int) -> list[dict[str, Any]]:
    """Time each answer on both engines. The first one warms up, and is left out."""
    rows = []
    for seed in range(answers + 1):
        row: dict[str, Any] = {}
        texts = set()
        for name in engines if seed % 2 else reversed(engines):
            llm = engines[name]
            params = SamplingParams(
                max_tokens=120,
                temperature=0.8,
                seed=seed,
                structured=Structured(json_schema=SCHEMA, whitespace="compact"),
            )
            prompt = llm.chat_prompt([{"role": "user", "content": ASKED}])
            began = time.perf_counter()
            (done,) = llm.generate(prompt, params)
            row[f"{name}_s"] = round(time.perf_counter() - began, 4)
            row["tokens"] = len(done.token_ids)
            texts.add(done.text)
        assert len(texts) == 1, texts
        if seed:
            rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(ran(main))
