"""Measure the masks of p11: their cost with a real vocabulary, and their effect on answers.

    PYTHONPATH=src:. python3 benchmarks/lessons/masks.py --out benchmarks/lessons/masks.json

The masks are those of `phases.p11_structured_output.cost`, timed by the thread's own clock. The answers are greedy, in
float32; of each step the file keeps how many tokens may come, the model's probability for all of them together, the
token that is drawn, and the one that the model would have chosen.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gradus import LLM, SamplingParams
from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.bench.statistics import significant
from phases.p11_structured_output.cost import EXPRESSIONS, measured, microseconds, vocabulary_of
from phases.p11_structured_output.masks import tree_of
from phases.p11_structured_output.watch import Watch, answer

FRANCE = "What is the capital of France?"
ALICE = 'Alice is 34 years old. Describe her as JSON, like this: {"name": "Bob", "age": 27}'
LIST = "My three favorite numbers as a JSON list:\n"
ANSWERS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "word": (FRANCE, True, {"choice": ["Paris", "London"]}),
    "asked for": (f"{FRANCE} Answer with one word: Paris or London.", True, {"choice": ["Paris", "London"]}),
    "sentence": (FRANCE, True, {"regex": r"The capital of France is (Paris|London)\."}),
    "person": (ALICE, True, {"regex": r'\{"name": "[A-Z][a-z]{1,15}", "age": [1-9]\d?\}'}),
    "no blanks": (ALICE, True, {"regex": r'\{"name":"[A-Z][a-z]{1,15}","age":[1-9]\d?\}'}),
    "one blank": (LIST, False, {"regex": r"\[\d+(, \d+)*\]"}),
    "any blanks": (LIST, False, {"regex": r"\[\s*\d+(,\s*\d+)*\s*\]"}),
    "about": ("Tell me about yourself as JSON.", True, {"regex": r'\{"about": "[^"\\\n]*"\}'}),
}
"""Prompts by name, each with whether it is a message in a chat, and the form of the answer."""
MOST = 48  # tokens


def answers(model: str) -> list[dict[str, Any]]:
    """Each prompt's answer without a mask and with it."""
    found = []
    with LLM(model, phase="p11", dtype="float32", device="cpu") as llm:
        assert llm.tokenizer is not None, "a model that reads text"
        watch = Watch(llm.engine.runner.sampler)  # type: ignore[attr-defined]
        for name, (prompt, chat, structured) in ANSWERS.items():
            ids = llm.chat_prompt([{"role": "user", "content": prompt}]) if chat else prompt
            (free,) = llm.generate(ids, SamplingParams(max_tokens=MOST))
            done, steps = answer(llm, watch, ids, structured, MOST)
            word = llm.tokenizer.decode
            kept = [
                [
                    step.legal,
                    significant(step.mass),
                    word([step.drawn], skip_special=False),
                    word([step.freely], skip_special=False),
                ]
                for step in steps
            ]
            found.append({"name": name, "prompt": prompt, "chat": chat, "structured": structured, "free": free.text}
                         | {"text": done.text, "ended": done.finish_reason, "steps": kept})  # fmt: skip
            print(f"{name}: {done.text!r}", flush=True)
    return found


def masks(model: str) -> dict[str, Any]:
    """The tree of the vocabulary, and the masks of every expression. Times in microseconds."""
    vocabulary = vocabulary_of(model)
    building = microseconds(lambda: tree_of(vocabulary))
    tree = tree_of(vocabulary)
    rows = []
    for name, structured in EXPRESSIONS.items():
        found = measured(structured, vocabulary, tree)
        rows.append({"name": name, **structured} | {key: _rounded(value) for key, value in found.items()})
        print(f"{name}: {found['states']} states", flush=True)
    text = sum(map(len, vocabulary))
    return {
        "tokens": len(vocabulary),
        "bytes": text,
        "nodes": len(tree),
        "building": significant(building),
        "rows": rows,
    }


def _rounded(value: Any) -> Any:
    return list(map(significant, value)) if isinstance(value, list) else significant(value)


PARTS: dict[str, Callable[[str], Any]] = {"masks": masks, "answers": answers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--only", choices=PARTS, help="renew this part of the file, and keep the other")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    asked = parser.parse_args()
    found = json.loads(asked.out.read_text(encoding="utf-8")) if asked.only else {}
    about = {"commit": asked.commit or commit(), **fingerprint(torch.device("cpu"), quick=True), "model": asked.model}
    found |= about | {name: part(asked.model) for name, part in PARTS.items() if asked.only in (None, name)}
    asked.out.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(ran(main))
