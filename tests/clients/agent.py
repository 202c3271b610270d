"""What the served "model" says to a client's program: valid answers to whatever that program asks of it.

It reads its prompt as a model would. Shown a tool that runs commands, it runs one that leaves a file behind, and
repeats what the tool answered; shown another tool, it calls that; asked for JSON, it writes some.
"""

import json
import re

from tests.server.saying import SayingCore

PROOF = "proof.txt"
COMMAND = f"echo gradus was here | tee {PROOF}"
RUNNERS = ("bash", "exec_command", "shell_command", "shell", "run_terminal_command")
"""Tools that run a command, by their names in lower case."""

ANSWER = "The answer is 42.\u2028 Ünïcödé too."
"""Has characters at which careless readers of streams split lines."""

TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|$)", re.DOTALL)


def say(prompt: str) -> str:
    """Answer a conversation, written by the tests' template."""
    turns = TURN.findall(prompt)
    tools = _tools(turns[0][1]) if turns and turns[0][0] == "system" else {}
    results = [said for role, said in turns if role == "tool"]
    if results:
        return f"The tool said: {results[-1].strip()[-200:]}"
    runner = next((name for name in tools if name.lower() in RUNNERS), None)
    if runner is not None:
        return _call(runner, _command(tools[runner]))
    if tools:
        name, schema = next(iter(tools.items()))
        return _call(name, {key: sample(one) for key, one in schema.get("properties", {}).items()})
    said = next((said for role, said in reversed(turns) if role == "user"), "")
    return '{"name": "Ada", "age": 36}' if "JSON" in said else ANSWER


def _tools(text: str) -> dict[str, dict]:
    """The tools that a prompt shows, one to a line: their schemas by name."""
    found = {}
    for line in text.splitlines():
        try:
            function = json.loads(line)["function"]
        except (ValueError, KeyError, TypeError):
            continue
        found[function["name"]] = function.get("parameters", {})
    return found


def _call(name: str, arguments: dict) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _command(schema: dict) -> dict:
    """Arguments that run the command, by whatever names the tool wants."""
    properties = schema["properties"]
    key = next(name for name in ("command", "cmd") if name in properties)
    as_list = properties[key].get("type") == "array"
    needed = {name: sample(properties[name]) for name in schema.get("required", []) if name in properties}
    return needed | {key: ["bash", "-c", COMMAND] if as_list else COMMAND}


def sample(schema: dict):
    """The simplest value of a property's schema."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "string")
    return {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}.get(kind, "Ulm")


def core() -> SayingCore:
    return SayingCore(say, size=3, context_length=2**20)
