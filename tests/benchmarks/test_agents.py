"""The evaluation of agents: tasks that can be passed and failed, a proxy that changes nothing, sessions that end."""

import json
import subprocess
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from benchmarks import agents
from benchmarks.agent_tasks import TASKS, Task, text
from benchmarks.agent_wire import Answer, Recorder, Turn, declared, obeys, read
from gradus.errors import ConfigError
from tests.clients import page
from tests.clients.agent import PROOF, core
from tests.server.conftest import running

SOLUTIONS = {
    "command": "sh stamp.sh",
    "tests": "python3 -m unittest || true",
    "build": "python3 build.py --out result.txt --level 3",
    "word": "grep -l heron notes/* > found.txt",
    "mend": "sed -i 's/range(1, n)/range(1, n + 1)/' sums.py",
    "answer": "echo 8471 > port.txt",
    "create": "echo good morning > hello.txt",
    "rename": "mv draft.txt final.txt",
    "count": "wc -l < names.csv > count.txt",
    "replace": "sed -i s/colour/color/g letter.txt",
}
WRONG = {
    "command": "echo 'the stamp was written'",
    "tests": "echo FAIL: test_subtract",
    "build": "python3 build.py --out result.txt --level 2",
    "word": "ls notes > found.txt",
    "mend": "sed -i 's/range(1, n)/range(1, n + 2)/' sums.py",
    "answer": "cp settings.ini port.txt",
    "create": "echo evening > hello.txt",
    "rename": "cp draft.txt final.txt",
    "count": "wc -l names.csv > count.txt",
    "replace": "sed -i s/colour/color/ letter.txt; echo color >> letter.txt",
}


@pytest.fixture(scope="module")
def server():
    """A server whose model runs a command that leaves PROOF, then says what the tool said."""
    with running(core) as started:
        yield started


# -- the tasks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_is_passed_by_what_is_on_disk_and_by_nothing_else(task):
    for script, expected in (("true", False), (WRONG[task.name], False), (SOLUTIONS[task.name], True)):
        with tempfile.TemporaryDirectory() as made:  # pytest's folders are closed to the user who runs checks
            folder = Path(made)
            folder.chmod(0o755)
            task.lay_out(folder)
            subprocess.run(["bash", "-euc", script], cwd=folder, capture_output=True, check=True)
            assert task.judge(folder, "test_subtract fails, and the stamp was written") is expected, script


def test_an_answer_counts_only_with_the_commands_trace_and_a_trace_only_with_the_answer(tmp_path):
    task = next(task for task in TASKS if task.name == "tests")
    task.lay_out(tmp_path)
    assert not task.judge(tmp_path, "test_subtract fails") and task.command_ran(tmp_path) is False
    subprocess.run(["bash", "-c", SOLUTIONS["tests"]], cwd=tmp_path, capture_output=True, check=True)
    assert task.command_ran(tmp_path) and not task.judge(tmp_path, "all tests pass")


# -- the wire ------------------------------------------------------------------------------------------------------

TOOL = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
    "additionalProperties": False,
}
BODIES = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Go"}],
        "tools": [{"type": "function", "function": {"name": "shell", "parameters": TOOL}}],
        "stream_options": {"include_usage": True},
    },
    "/v1/responses": {
        "input": "Go",
        "tools": [{"type": "function", "name": "shell", "parameters": TOOL}],
    },
    "/v1/messages": {
        "messages": [{"role": "user", "content": "Go"}],
        "max_tokens": 1000,
        "tools": [{"name": "shell", "input_schema": TOOL}],
    },
}


def posted(address: str, path: str, body: dict) -> bytes:
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", BODIES)
def test_calls_are_noted_in_every_protocol_streamed_or_whole(server, path, stream):
    body = BODIES[path] | {"model": "served", "stream": stream}
    if not stream:
        body.pop("stream_options", None)
    with Recorder(server.port) as recorder:
        assert posted(recorder.address, path, body)
    [turn] = recorder.turns
    assert turn.body == body and turn.status == 200
    [(name, arguments)] = turn.answer.calls
    assert name == "shell" and PROOF in json.loads(arguments)["command"]
    assert turn.answer.prompt_tokens > 100 and turn.answer.first_call >= turn.began
    assert turn.invalid_calls() == 0 and not turn.answer.looks_like_a_call()


@pytest.mark.parametrize("path", BODIES)
def test_a_text_is_noted_in_every_protocol_streamed_or_whole(server, path):
    body = {name: value for name, value in BODIES[path].items() if name not in ("tools", "stream_options")}
    texts = []
    for stream in (True, False):
        with Recorder(server.port) as recorder:
            posted(recorder.address, path, body | {"model": "served", "stream": stream})
        texts.append(recorder.turns[0].answer.text)
    assert texts[0] == texts[1] and texts[0].startswith("The answer is 42.")


def test_an_answer_is_the_same_however_its_bytes_are_cut():
    chunks = [{"choices": [{"delta": {"content": "é"}}]}]
    chunks += [{"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"a'}}]}}]}]
    chunks += [{"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '": 1}'}}]}}]}]
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n"
    for cut in range(1, len(stream)):
        found = read([(1.0, stream[:cut]), (2.0, stream[cut:])])
        assert (found.text, found.calls) == ("é", [("f", '{"a": 1}')])


@pytest.mark.parametrize(
    ("arguments", "right"),
    [('{"command": "ls"}', True), ("", False), ('"ls"', False), ('{"command": 1}', False), ('{"cmd": "ls"}', False)],
)
def test_a_call_is_valid_if_its_arguments_obey_the_schema(arguments, right):
    assert obeys(arguments, TOOL) is right
    assert not obeys(arguments, None), "of a tool that was not sent"


def test_tools_are_found_in_every_protocol_and_in_a_namespace():
    for body in BODIES.values():
        assert declared(body) == {"shell": TOOL}
    inner = BODIES["/v1/responses"]["tools"]
    assert declared({"tools": [{"type": "namespace", "name": "all", "tools": inner}]}) == {"shell": TOOL}


def test_an_agent_that_leaves_ends_its_request(server):
    """Closing the recorder closes what is under way: the server does not go on generating for a dead agent."""
    body = {"model": "served", "messages": [{"role": "user", "content": "Go"}], "max_tokens": 4, "stream": True}
    with Recorder(server.port) as recorder:
        request = urllib.request.Request(recorder.address + "/v1/chat/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        answer = urllib.request.urlopen(request, timeout=60)
        answer.close()
    assert server.idle() or _eventually(server.idle)


def _eventually(holds) -> bool:
    until = time.monotonic() + 20
    while not (found := holds()) and time.monotonic() < until:
        time.sleep(0.05)
    return found


# -- sessions ------------------------------------------------------------------------------------------------------

PROVE = Task(
    "prove", "Leave a proof", {}, lambda folder, said: "was here" in text(folder, PROOF) and "was here" in said
)


def test_our_own_loop_runs_what_the_model_calls_and_the_record_says_so(server):
    record, turns = agents.session(agents.agent_named("own"), "served", PROVE, server.port, 60)
    assert record["passed"] and record["ran"] and record["ended"] == "by itself", record
    assert (record["turns"], record["calls"], record["invalid"], record["as_text"]) == (2, 1, 0, 0)
    assert record["prompt_tokens"] > 100 and 0 < record["first_call_s"] <= record["seconds"]
    assert record["command_ran"] is None and turns[1].results() == 1


def test_a_session_ends_after_its_time_with_all_that_it_started(server):
    slow = agents.Agent("slow", "1", "setsid sleep 4817 & sleep 4818")
    record, _ = agents.session(slow, "served", PROVE, server.port, 1)
    assert record["ended"] == "out of time" and not record["passed"] and record["seconds"] < 10
    left = [one.info["cmdline"] for one in psutil.process_iter(["cmdline"]) if "4817" in (one.info["cmdline"] or ())]
    assert not left


def test_an_agent_that_fails_leaves_its_last_words(server):
    record, _ = agents.session(
        agents.Agent("bad", "1", "echo no such model >&2; exit 3"), "served", PROVE, server.port, 9
    )
    assert record["ended"] == "exit code 3: no such model"


def test_agents_see_nothing_of_the_users_environment(server, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    script = 'env > seen.txt; [ "$TASK" = "Leave a proof" ] && [ -z "${SECRET-}" ] && [ "$HOME" != "/root" ]'
    record, _ = agents.session(agents.Agent("look", "1", script), "served", PROVE, server.port, 9)
    assert record["ended"] == "by itself"


# -- the evaluation ------------------------------------------------------------------------------------------------


@pytest.fixture
def evaluation(monkeypatch, tmp_path):
    """Run the script with sessions that cost nothing. Returns (the sessions it ran, servers' options)."""
    ran, options = [], []

    @contextmanager
    def served(model, more):
        options.append((model, *more))
        yield 1

    def session(agent, model, task, port, seconds):
        ran.append((agent.name, model, task.name))
        return {"passed": True}, [Turn({}, 0.0, 200, Answer([], "hello"))]

    monkeypatch.setattr(agents, "served", served)
    monkeypatch.setattr(agents, "session", session)

    def run(*arguments: str):
        ran.clear(), options.clear()
        common = ("--agent", "own", "--out", str(tmp_path / "agents.json"))
        assert agents.main([*common, *arguments]) == 0
        return list(ran), list(options)

    return run


def test_sessions_that_the_file_has_are_skipped(evaluation, tmp_path):
    first, _ = evaluation("--model", "a", "--task", "command", "--calls", "constrained")
    assert first == [("own", "a", "command")]
    ran, options = evaluation("--model", "a", "b", "--task", "command", "create", "--free=--x 1")
    assert ran == [("own", "a", "create"), *[("own", "a", each) for each in ("command", "create")],
                   *[("own", "b", each) for each in ("command", "create")] * 2]  # fmt: skip
    assert options == [("a",), ("a", "--x", "1"), ("b",), ("b", "--x", "1")]
    assert evaluation("--model", "a", "b", "--task", "command", "create") == ([], []), "and no server is started"
    found = json.loads((tmp_path / "agents.json").read_text())
    assert len({tuple(one[name] for name in agents.KEY) for one in found["sessions"]}) == len(found["sessions"]) == 8
    assert len(evaluation("--model", "a", "--task", "command", "--repeats", "2")[0]) == 2


def test_no_session_starts_after_the_time(evaluation):
    assert evaluation("--model", "a", "--minutes", "-1") == ([], [])


def test_bodies_are_kept_where_that_is_asked_for(evaluation, tmp_path):
    evaluation("--model", "a", "--task", "command", "--calls", "free", "--bodies", str(tmp_path / "bodies.jsonl"))
    [line] = (tmp_path / "bodies.jsonl").read_text().splitlines()
    assert json.loads(line)["answer"]["text"] == "hello" and json.loads(line)["task"] == "command"


def test_the_pages_agents_are_known_and_their_prompt_is_replaced():
    assert {"codex", "claude-code", "opencode", "own"} <= set(agents.known_agents())
    for name, client in page.read().items():
        assert agents._prompts(client) <= 1, f"{name}: a session has one task"
    assert agents.serving_command()[0] == "serve" and "--model" not in agents.serving_command()


def test_an_agent_that_is_not_installed_says_how(monkeypatch, tmp_path):
    monkeypatch.setattr(agents.installing, "HOMES", tmp_path)
    with pytest.raises(ConfigError, match=r"installing codex"):
        agents.agent_named("codex")
