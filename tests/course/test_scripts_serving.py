"""The programs that p13's lesson names run as it names them, with a tiny model; its code is as short as it says."""

import ast
import json
import re
import shlex
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from tokenize import COMMENT, DEDENT, ENDMARKER, INDENT, NEWLINE, NL, generate_tokens

import httpx
import pytest

from gradus import phases
from phases.p13_serving import demo, way
from tests.cli.conftest import gradus  # noqa: F401  # the command line, as a fixture
from tests.course.conftest import ROOT
from tests.phases.test_serving import answers
from tests.ports import free_port
from tests.server.conftest import eventually

FOLDER = ROOT / "phases/p13_serving"
LESSON = (FOLDER / "README.md").read_text(encoding="utf-8")
SERVER = ("admission", "events", "text", "stream", "desk", "engine_thread", "app", "server")
MOST_LINES = 310
BETWEEN = {COMMENT, NL, NEWLINE, INDENT, DEDENT, ENDMARKER}


def code_lines(source: str) -> int:
    """Lines of code: without imports, docstrings, comments and blank lines."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if text or isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, node.end_lineno + 1))
    tokens = (token for token in generate_tokens(StringIO(source).readline) if token.type not in BETWEEN)
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - left_out)


def test_the_server_is_a_few_hundred_lines():
    assert "a few hundred lines" in " ".join(LESSON.split())
    assert 250 < sum(code_lines((FOLDER / f"{name}.py").read_text(encoding="utf-8")) for name in SERVER) <= MOST_LINES


def test_the_count_leaves_out_what_is_no_code():
    source = '"""Idea."""\n\nimport os\n\n\ndef f(\n    x,  # a comment\n):\n    """What."""\n    return x\n'
    assert code_lines(source) == 4


def test_the_lesson_names_every_program_of_the_phase():
    named = set(re.findall(r"^python -m phases\.p13_serving(?:\.(\w+))?", LESSON, flags=re.MULTILINE))
    programs = {path.stem for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    assert {name or "__main__" for name in named} == programs == {"__main__", "way"}


def test_way_shows_both_requests_in_order_of_time(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["way", "--phase", "p03", "--model", "random:tiny-llama"])
    monkeypatch.setattr(way, "ANN", (way.ANN[0], 100))  # on a busy machine Cy comes late
    way.main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["ms", "took", "where", "who", "what"]
    times = [float(row.split()[0]) for row in rows]
    assert times == sorted(times)
    for who in ("Ann", "Cy"):
        mine = [row for row in rows if who in row]
        ways = ["sends the request", "lets it in", "takes the request", "step", "tokens into text", "reads a frame"]
        places = [next(place for place, row in enumerate(mine) if what in row) for what in ways]
        assert places == sorted(places)
    assert any("Ann, Cy" in row and "step" in row for row in rows)


def test_the_demo_compares_three_ways_to_encode(gradus, monkeypatch):  # noqa: F811
    for name, value in (("TOKENS", 20), ("RUNS", 1), ("BEFORE_S", 0.0), ("TEXT", "a long prompt " * 800)):
        monkeypatch.setattr(demo, name, value)
    done = gradus("demo", "p13", "--model", "random:tiny-llama")
    assert done.code == 0, done.err
    rows = re.findall(r"^encoded (.*): +usual gap +[\d.]+ ms, longest +\d+ ms$", done.out, flags=re.MULTILINE)
    assert rows == list(demo.WAYS) and done.out.startswith(demo.QUESTION)
    refused = gradus("demo", "p13", "--out", "chart.svg")
    assert refused.code == 2 and refused.err.count("\n") == 1


def test_the_first_two_ways_are_the_mistakes_that_they_are_called():
    import asyncio
    import threading

    from gradus.loading import tokenizer

    async def where() -> bool:
        return await asyncio.to_thread(threading.get_ident) == threading.get_ident()

    async def there(text: str) -> int:
        return await asyncio.to_thread(lambda _: threading.get_ident(), text)

    def same() -> bool:
        return asyncio.run(there("")) == threading.get_ident()

    found = []
    for kind in demo.WAYS:
        with demo.encoded(kind):
            found.append((same(), len(demo.TEXT) <= tokenizer.LONG_TEXT))
    assert found == [(True, False), (False, True), (False, False)]


def test_the_server_runs_as_the_lesson_starts_it_with_a_student_s_files(tmp_path):
    """By the command of "Build it"; that of "Run it" is the same without --impl."""
    pattern = r"^(python -m phases\.p13_serving --phase p03( --impl \S+)?)  "
    (command, impl), (plain, _) = re.findall(pattern, LESSON, flags=re.MULTILINE)
    assert command == plain + impl
    source = (FOLDER / "events.py").read_text(encoding="utf-8").replace('event("[DONE]")', 'event("[THE END]")')
    (tmp_path / "exercises/p13").mkdir(parents=True)
    (tmp_path / "exercises/p13/events.py").write_text(source, encoding="utf-8")
    words = [sys.executable, *shlex.split(command)[1:], "--model", "random:tiny-llama"]
    words += ["--port", str(port := free_port())]
    environment = {"PYTHONPATH": f"{ROOT}/src:{ROOT}", "PATH": ""}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as http:
            assert eventually(lambda: answers(http) or process.poll() is not None, 60)
            assert process.poll() is None, process.stderr.read()
            text = http.post("/generate", json={"prompt": "ab", "max_tokens": 2, "stream": True}).text
        assert text.endswith("data: [THE END]\n\n")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("argument", "says"), [("p99", "phase must be one of p00"), ("p13", "has no engine of its own")]
)
def test_a_mistake_is_one_line(argument, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["p13", "--phase", argument, "--model", "random:tiny-llama"])
    from phases.p13_serving.__main__ import main

    assert main() == 2
    assert says in (said := capsys.readouterr().err) and said.count("\n") == 1


def test_a_student_s_functions_run_in_the_server_and_in_no_engine(tmp_path):
    (tmp_path / "events.py").write_text((FOLDER / "events.py").read_text(encoding="utf-8"), encoding="utf-8")
    yours = phases.solution("p13", tmp_path)
    assert yours.note.startswith("your p13: events.py; ours: admission.py, text.py, desk.py, ")
    module = yours.module("server")
    assert Path(module.create_app.__globals__["encode"].__code__.co_filename) == tmp_path / "events.py"
    with pytest.raises(phases.ConfigError, match="p13 has no engine of its own"):
        yours.build(None, None)
    assert json.loads(module.create_app.__globals__["encode"]({"a": 1})) == {"a": 1}
