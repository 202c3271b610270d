"""Commands on a terminal that lacks the characters that they print: each in plain ASCII, none ends in a traceback."""

import json
import os
import subprocess
import sys

import pytest

from tests.cli.conftest import ROOT
from tests.pairwise import first

# All in one process, as starting one takes a second. Each sees the arguments and the streams of the command itself.
SCRIPT = """
import json, sys
from gradus.cli import main
codes = {}
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["gradus", *arguments]
    print("###", *arguments[:2], flush=True)
    codes[arguments[0]] = main()
print("### codes", json.dumps(codes))
"""
TINY = ["--model", "random:tiny-llama", "--device", "cpu", "--max-tokens", "12", "--seed", "3", "--temperature", "1"]
TINY += ["--phase", "p00"]


def run(environment: dict[str, str], *commands: list[str]) -> tuple[dict[str, int], str, str]:
    """The commands' exit codes, what they printed, and what they said about it."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)],
        input=b"hello there\n",
        capture_output=True,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"} | environment,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    encoding = environment.get("PYTHONIOENCODING", "ascii")
    out, err = done.stdout.decode(encoding), done.stderr.decode(encoding)
    return json.loads(out.rpartition("### codes ")[2]), out, err


@pytest.mark.slow
def test_every_command_prints_ascii_where_the_terminal_has_nothing_else(tmp_path):
    codes, out, err = run(
        {"PYTHONIOENCODING": "ascii"},
        ["--help"],
        ["models"],
        ["exercise", "p01", "--to", str(tmp_path)],
        ["check", "p00", "--impl", str(ROOT / "tests")],
        ["show", "p00"],
        ["generate", "caf\u00e9", *TINY],
        ["chat", *TINY],
        ["doctor"],
        ["demo", "p01", "--model", "random:tiny-llama"],
    )
    assert [codes[name] for name in ("--help", "models", "exercise", "show", "generate", "chat")] == [0] * 6
    assert codes["check"] == 2 and codes["doctor"] in (0, 1) and codes["demo"] == 0
    shown = dict(part.split("\n", 1) for part in out.split("### ")[1:] if "\n" in part)
    assert [line.split()[1] for line in shown["doctor"].splitlines() if line.startswith("safetensors ")][-1] == "ok"
    assert "[T, D] -> [T, D]" in shown["show p00"]
    assert "generated - stopped" in err and "Traceback" not in err and "\\xb7" not in err


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0"}


@pytest.mark.parametrize(
    ("environment", "arguments", "says"),
    first([
        (C_LOCALE, ["show", "p00"], "[T, D] -> [T, D]"),
        (C_LOCALE, ["generate", "Hello", *TINY], "generated - stopped"),
        ({"PYTHONIOENCODING": "latin-1"}, ["generate", "Hello", *TINY], "generated · stopped"),
    ]),
)  # fmt: skip
def test_text_survives_the_terminals_own_encoding(environment, arguments, says):
    codes, out, err = run(environment, ["models"], arguments)
    assert codes == {"models": 0, arguments[0]: 0}
    assert says in out + err and "Traceback" not in err
