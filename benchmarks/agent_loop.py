"""The plainest agent: one tool that runs shell commands, and a loop. Needs Python's standard library alone.

    python3 benchmarks/agent_loop.py http://127.0.0.1:8000 qwen2.5-coder-1.5b "Run the tests"

It ends when the model answers without a call, or after twelve turns. Exit code 1 if the server refuses a turn.
"""

import json
import subprocess
import sys
import urllib.error
import urllib.request

TURNS, SECONDS, SHOWN = 12, 60, 4000
"""Turns of a session, seconds of a command, characters of its output that the model sees."""

SYSTEM = (
    "You are a coding agent in the user's folder. Use the tool shell to do what the user asks, then answer briefly."
)
SHELL = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Runs a command with bash in the user's folder. Returns its output and its exit code.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command to run."}},
            "required": ["command"],
            "additionalProperties": False,
        },
    },
}


def ask(address: str, model: str, messages: list[dict]) -> dict:
    """Return the model's message: {"content": …, "tool_calls": [...]}."""
    body = json.dumps({"model": model, "messages": messages, "tools": [SHELL]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer none"}
    request = urllib.request.Request(f"{address}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return json.load(answer)["choices"][0]["message"]


def shell(arguments: str) -> str:
    """Run a call's command. A call that names none gets an explanation, so that the model can mend it."""
    try:
        command = json.loads(arguments)["command"]
        done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=SECONDS)
    except (ValueError, KeyError, TypeError):
        return 'error: the arguments must be an object such as {"command": "ls"}'
    except subprocess.TimeoutExpired:
        return f"error: the command ran for more than {SECONDS} seconds"
    return f"{(done.stdout + done.stderr).decode(errors='replace')[-SHOWN:]}\nexit code {done.returncode}"


def main(address: str, model: str, task: str) -> int:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
    for _ in range(TURNS):
        try:
            message = ask(address, model, messages)
        except urllib.error.HTTPError as refused:
            print(refused.read().decode(errors="replace"), file=sys.stderr)
            return 1
        messages.append(message)
        if not message.get("tool_calls"):
            print(message["content"])
            return 0
        for call in message["tool_calls"]:
            result = shell(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    print(f"stopped after {TURNS} turns")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
