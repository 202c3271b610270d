"""Does a model call the right tool with the right arguments, with a grammar and without one?

    PYTHONPATH=src:. python3 benchmarks/tool_calls.py --out benchmarks/tool_calls.json

Each case (`prompts/tool_calls.json`) is a user's sentence, one to five tools, and the call that it asks for. Answers
are greedy, and scored in four steps, each of which needs the one before: the answer has a call, its first call names
the right tool, the arguments obey the tool's schema, and they are the expected ones. Texts may differ in case, and in
blanks and a full stop at the end.

Modes: free (the model decides, no grammar), loose (the same, and JSON at an answer's beginning is a call without its
tags, as the format qwen2.5-coder has it), auto (the model decides, and a call obeys its grammar), required (it must
call), named (it must call this tool). Modes that are not run again keep their results.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gradus import LLM, SamplingParams
from gradus.bench.measure.fingerprint import commit, hardware_name
from gradus.bench.run.script import ran
from gradus.text.completion import Completion
from gradus.text.tools.dialect import Dialect
from gradus.text.tools.events import Answer
from gradus.text.tools.tool import Tool, read_tools

CASES = Path(__file__).parent / "prompts" / "tool_calls.json"
MODES = ("free", "loose", "auto", "required", "named")
CHOICES = {"free": "auto", "loose": "auto", "auto": "auto", "required": "required"}
MOST_TOKENS = 160
SHOWN = 400  # characters of an answer that are kept


@dataclass(frozen=True)
class Case:
    """ask: the user's sentence. call, arguments: what it asks for."""

    ask: str
    tools: tuple[Tool, ...]
    call: str
    arguments: Mapping[str, Any]

    def schema(self) -> Mapping[str, Any]:
        return next(tool.schema for tool in self.tools if tool.name == self.call)


@dataclass(frozen=True)
class Score:
    """The four steps that an answer can reach, one after the other."""

    called: bool = False
    right_tool: bool = False
    valid: bool = False
    exact: bool = False


def read_cases(path: Path = CASES) -> list[Case]:
    found = json.loads(path.read_text(encoding="utf-8"))
    tools = {tool["function"]["name"]: tool for tool in found["tools"]}
    return [
        Case(each["ask"], read_tools([tools[name] for name in each["tools"]]), each["call"], each["arguments"])
        for each in found["cases"]
    ]


# -- the rules -------------------------------------------------------------------------------------------------------


def score(case: Case, answer: Answer) -> Score:
    if not answer.calls:
        return Score()
    call = answer.calls[0]
    if call.name != case.call:
        return Score(called=True)
    arguments = json.loads(call.arguments) if call.complete else None
    valid = obeys(arguments, case.schema())
    return Score(True, True, valid, valid and same(arguments, case.arguments))


def obeys(value: Any, schema: Mapping[str, Any]) -> bool:
    """Check a value against the part of JSON Schema that the cases use."""
    unknown = schema.keys() - {"type", "description", "enum", "properties", "required", "additionalProperties", "items"}
    if unknown:
        raise ValueError(f"no rule here for {', '.join(sorted(unknown))}")
    if "enum" in schema and value not in schema["enum"]:
        return False
    match schema["type"]:
        case "object":
            return isinstance(value, dict) and _members_obey(value, schema)
        case "array":
            return isinstance(value, list) and all(obeys(item, schema["items"]) for item in value)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case other:
            raise ValueError(f"no rule here for the type {other}")


def _members_obey(value: dict[str, Any], schema: Mapping[str, Any]) -> bool:
    properties = schema["properties"]
    if not set(schema.get("required", ())) <= value.keys() or not value.keys() <= properties.keys():
        return False
    return all(obeys(member, properties[name]) for name, member in value.items())


def same(found: Any, expected: Any) -> bool:
    """Compare arguments: texts without regard to case, and to blanks and a full stop at the end."""
    if isinstance(found, str) and isinstance(expected, str):
        return found.strip().rstrip(".").casefold() == expected.strip().rstrip(".").casefold()
    if isinstance(found, dict) and isinstance(expected, Mapping):
        return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in found)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return (type(found) is type(expected) and found == expected) or (
        _number(found) and _number(expected) and found == expected
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- the run ---------------------------------------------------------------------------------------------------------


def run(llm: LLM, cases: list[Case], mode: str) -> dict[str, Any]:
    """Ask every case once, all at a time. Returns counts, and each case's answer in short."""
    dialect = Dialect(llm.front_end.dialect.tokenizer, "qwen2.5-coder") if mode == "loose" else llm.front_end.dialect
    turns, prompts, params = [], [], []
    for case in cases:
        choice = {"type": "function", "function": {"name": case.call}} if mode == "named" else CHOICES[mode]
        tools = [Tool(tool.name, tool.description, tool.parameters, strict=mode == "auto") for tool in case.tools]
        turn = dialect.turn(tools, choice, parallel=False)
        prompt = llm.chat_prompt([{"role": "user", "content": case.ask}], tools=turn.shown)
        turns.append(turn)
        prompts.append(prompt)
        params.append(turn.constrain(SamplingParams(max_tokens=MOST_TOKENS), prompt))
    completions = generate(llm, prompts, params)
    counts = dict.fromkeys(asdict(Score()), 0)
    rows = []
    for case, turn, prompt, completion in zip(cases, turns, prompts, completions, strict=True):
        answer = turn.answer(completion, prompt, seed="0")
        found = asdict(score(case, answer))
        counts = {name: count + found[name] for name, count in counts.items()}
        rows.append({"ask": case.ask, "answer": completion.text[:SHOWN], "steps": sum(found.values())})
    tokens = sum(len(completion.token_ids) for completion in completions)
    return {"cases": len(cases), **counts, "tokens": tokens, "answers": rows}


_GENERATED: list[tuple[Any, list[Completion]]] = []


def generate(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[Completion]:
    """Generate answers, or return those of an earlier mode that asked the same."""
    for asked, completions in _GENERATED:
        if asked == (prompts, params):
            return completions
    _GENERATED.append(((prompts, params), llm.generate(prompts, params)))
    return _GENERATED[-1][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cases = read_cases()
    found: dict[str, Any] = {}
    with LLM(options.model, device=options.device, dtype=options.dtype, context_length=2048) as llm:
        about = {
            "model": options.model,
            "dtype": str(llm.precision.activations).removeprefix("torch."),
            "hardware": hardware_name(llm.device),
            "torch": torch.__version__,
            "commit": commit(),
        }
        if options.out and options.out.is_file():
            found = json.loads(options.out.read_text(encoding="utf-8"))
        for mode in options.modes:
            result = run(llm, cases, mode)
            found[mode] = about | result
            shown = ", ".join(f"{name} {result[name]}" for name in asdict(Score()))
            print(f"{mode}: of {result['cases']} cases {shown}; {result['tokens']} tokens")
            if options.out:
                options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(ran(main))
