"""The Dockerfile, read by a small parser: what is copied exists, nothing runs as root, and no secret is baked in."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import yaml

from tests.ports import free_port
from tests.server.conftest import eventually
from tests.shipping.flags import unknown

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "docker"
KNOWN = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "STOPSIGNAL", "USER",
    "VOLUME", "WORKDIR",
}  # fmt: skip
SECRET = re.compile(r"(?i)(key|token|password|secret)\w*\s*=\s*['\"]?\w")


@dataclass
class Stage:
    name: str
    base: str
    instructions: list = field(default_factory=list)  # (instruction, arguments)

    def all(self, instruction):
        return [arguments for name, arguments in self.instructions if name == instruction]


def parsed(text):
    """The stages of a Dockerfile, by name. Raises ValueError for what is no instruction."""
    stages, joined = {}, re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    stage = None
    for line in filter(str.strip, joined.splitlines()):
        name, _, arguments = line.strip().partition(" ")
        if name not in KNOWN:
            raise ValueError(f"{name} is no instruction that is used here")
        arguments = " ".join(arguments.split())
        if name == "FROM":
            base, _, alias = arguments.partition(" AS ")
            stage = stages[alias] = Stage(alias, base)
        else:
            stage.instructions.append((name, arguments))
    return stages


def inherited(stages, name):
    """The instructions of a stage after those of the stages that it begins from."""
    stage = stages[name]
    before = inherited(stages, stage.base) if stage.base in stages else []
    return before + stage.instructions


def last(instructions, wanted):
    return [arguments for name, arguments in instructions if name == wanted][-1]


STAGES = parsed((FOLDER / "Dockerfile").read_text())
TARGETS = ("cpu", "cuda")


def test_the_parser_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="ADD"):
        parsed("FROM a AS b\nADD https://example.org/x /x\n")
    assert parsed("FROM a AS b\n# no\nRUN x \\\n    && y\n")["b"].all("RUN") == ["x && y"]


def test_stages_build_on_one_base_that_names_its_version():
    outside = {stage.base for stage in STAGES.values() if stage.base not in STAGES}
    assert outside == {"python:3.12-slim-bookworm"}


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_copied_exists_and_is_in_the_context(stage):
    context = (FOLDER / "Dockerfile.dockerignore").read_text().split()
    assert context[context.index("*")] == "*"  # nothing, apart from what follows
    for arguments in STAGES[stage].all("COPY"):
        *sources, target = shlex.split(arguments)
        if sources[0].startswith("--from="):
            origin, path = sources
            commands = [text for name, text in inherited(STAGES, origin.removeprefix("--from=")) if name == "RUN"]
            assert path == target and any(path in command for command in commands)
        else:
            assert all((ROOT / source).exists() and f"!{source}" in context for source in sources)


def test_everything_that_the_package_is_built_from_is_copied():
    wanted = {"constraints.txt", "pyproject.toml", "setup.py", "README.md", "LICENSE", "src"}
    for target in TARGETS:
        copied = [text for name, text in inherited(STAGES, f"build-{target}") if name == "COPY"]
        assert {source for arguments in copied for source in arguments.split()[:-1]} == wanted


def test_every_installation_is_constrained_and_the_cpu_image_has_the_cpu_build():
    for target in TARGETS:
        commands = [text for name, text in inherited(STAGES, f"build-{target}") if name == "RUN"]
        installs = [part for command in commands for part in command.split("&&") if "pip install" in part]
        assert all("--constraint constraints.txt" in part for part in installs if not part.endswith("install uv "))
        assert any("'.[server]'" in part for part in installs)
        assert ("--torch-backend cpu" in " ".join(installs)) == (target == "cpu")


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_as_a_fixed_user_that_is_not_root(target):
    instructions = inherited(STAGES, target)
    user = last(instructions, "USER")
    assert user == "10001:10001" and instructions[-1] == ("USER", user)
    (made,) = [text for name, text in instructions if name == "RUN" and "useradd" in text]
    assert "--uid 10001" in made and "--gid 10001" in made


@pytest.mark.parametrize("target", TARGETS)
def test_all_that_is_written_is_in_a_volume(target):
    instructions = inherited(STAGES, target)
    volumes = json.loads(last(instructions, "VOLUME"))
    environment = dict(part.split("=", 1) for name, text in instructions if name == "ENV" for part in shlex.split(text))
    folders = {
        name: environment[name] for name in ("HOME", "GRADUS_HOME", "HF_HOME", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR")
    }
    for path in folders.values():
        assert any(path == volume or path.startswith(volume + "/") for volume in volumes)
    (made,) = [text for name, text in instructions if name == "RUN" and "install --directory" in text]
    assert all(volume in made for volume in volumes)
    assert last(instructions, "WORKDIR") in volumes


@pytest.mark.parametrize("target", TARGETS)
def test_the_command_and_its_probe_fit_the_server(target):
    instructions = inherited(STAGES, target)
    program, command, *arguments = json.loads(last(instructions, "ENTRYPOINT"))
    assert (program, command) == ("gradus", "serve") and not unknown(arguments)
    assert arguments == ["--host", "0.0.0.0"] and last(instructions, "EXPOSE") == "8000"
    assert last(instructions, "STOPSIGNAL") == "SIGTERM"
    options, _, probe = last(instructions, "HEALTHCHECK").partition(" CMD ")
    assert "--start-period" in options and "/health/live" in probe and "8000" in probe


def test_the_probe_succeeds_on_a_live_server_alone(serving):
    """The same command, against a server's port."""
    probe = json.loads(last(inherited(STAGES, "cpu"), "HEALTHCHECK").partition(" CMD ")[2])
    server = serving()

    def status(port):
        return subprocess.run([part.replace("8000", str(port)) for part in probe], capture_output=True).returncode

    assert status(server.port) == 0
    server.on_loop(lambda: server.client.supervisor.give_up("a test"))
    assert server.http.get("/health/live").status_code == 503 and status(server.port) != 0


def test_a_gpu_image_has_a_compiler_for_triton_and_the_cpu_image_has_none():
    assert any("gcc" in command for command in STAGES["cuda"].all("RUN"))
    assert not any("gcc" in text for name, text in inherited(STAGES, "cpu") if name == "RUN")
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in last(STAGES["cuda"].instructions, "ENV")


def test_nothing_secret_is_in_an_image():
    for stage in STAGES.values():
        assert not [
            text for name, text in stage.instructions if name in ("ENV", "ARG", "LABEL") and SECRET.search(text)
        ]
    assert SECRET.search("GRADUS_API_KEY=abc") and SECRET.search('HF_TOKEN = "x"')


@pytest.mark.parametrize("script", ["docker/check.sh", "compose/secrets.sh"])
def test_a_script_can_be_read_by_a_shell_and_run(script):
    path = ROOT / "deploy" / script
    assert path.stat().st_mode & 0o111 and path.read_text().startswith("#!/bin/sh\n")
    assert subprocess.run(["sh", "-n", str(path)]).returncode == 0


def test_the_workflow_builds_both_images_and_checks_them():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "images.yml").read_text())
    job = workflow["jobs"]["build"]
    assert job["strategy"]["matrix"]["target"] == [*TARGETS] and workflow["permissions"] == {"contents": "read"}
    commands = " ".join(step.get("run", "") for step in job["steps"])
    assert "make image TARGET=${{ matrix.target }}" in commands
    made = subprocess.run(["make", "-n", "image", "TARGET=cuda"], cwd=ROOT, capture_output=True, text=True).stdout
    assert "--file deploy/docker/Dockerfile --target cuda" in made and "deploy/docker/check.sh gradus:cuda" in made
    assert all(
        "@" not in step.get("uses", "@") or re.search(r"@[0-9a-f]{40}$", step["uses"])
        for step in job["steps"]
        if "uses" in step
    )
    triggers = workflow[True]  # YAML reads `on` so
    assert triggers["push"]["paths"] == triggers["pull_request"]["paths"]
    assert all((ROOT / path.removesuffix("/**")).exists() for path in triggers["push"]["paths"])


def test_the_server_can_be_the_first_process():
    """In a process namespace of its own, as in a container, it reaps its engine's process and drains."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("no process namespace can be made here")
    command = [sys.executable, "-m", "gradus", "serve", "--model", "random:tiny-llama", "--port", str(free_port())]
    with subprocess.Popen([*alone, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert b"serving" in process.stdout.readline()
            (server,) = psutil.Process(process.pid).children()
            (engine,) = server.children()
            engine.kill()
            assert eventually(lambda: not engine.is_running(), 20)
            assert eventually(lambda: [child.status() for child in server.children()] == [psutil.STATUS_SLEEPING], 20)
            server.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
