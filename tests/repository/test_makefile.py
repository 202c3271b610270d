"""`make` sets up once, with a Python that really runs, and says so in one line when there is none.

The Makefile runs here in an empty folder with stand-ins for Python that only write down what they were asked.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.loading.test_weights import SIZES

ROOT = Path(__file__).parents[2]

# `-c` is the Makefile's question whether it will do; `-m venv` leaves what venv would, with itself as its python.
WORKING = """#!/bin/sh
case "$1 $2" in
  "-m uv") status=${NO_UV:-0} ;;
  "-c "*) exit 0 ;;
  --version*) echo Python 3.12.1 ;;
  "-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; touch "$3/bin/pip" ;;
esac
echo "$(basename "$0") $*" >> "$LOG"
exit ${status:-0}
"""
SHIM = "#!/bin/sh\necho 'command not found' >&2\nexit 127\n"
PIP = "python -m pip install --no-compile --disable-pip-version-check --constraint constraints.txt"
EVERY_PYTHON = ("python3.14", "python3.13", "python3.12", "python3.11", "python3", "python")


@pytest.fixture
def folder(tmp_path):
    """Copy the files that `make` reads, and put a folder for commands first on its path."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "commands").mkdir()
    command(tmp_path, "nvidia-smi", "#!/bin/sh\n")
    return tmp_path


def command(folder: Path, name: str, script: str) -> Path:
    path = folder / "commands" / name
    path.write_text(script)
    path.chmod(0o755)
    return path


def make(
    folder: Path, *arguments: str, path: str = "/usr/bin:/bin", **given: str
) -> tuple[subprocess.CompletedProcess, list[str]]:
    """Run make; returns what it did, and what the stand-ins were asked, in order."""
    log = folder / "log"
    log.write_text("")
    environment = {
        "PATH": f"{folder / 'commands'}:{path}",
        "LOG": str(log),
        "HOME": os.environ.get("HOME", "/"),
        **given,
    }
    done = subprocess.run(["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    questions = (" -c ", "--version", "pip config list")
    return done, [line for line in log.read_text().splitlines() if not any(asks in line for asks in questions)]


def test_without_a_target_it_explains_itself(folder):
    done, _ = make(folder)
    assert done.returncode == 0
    targets = (
        "serve",
        "course",
        "test",
        "test-gpu",
        "lint",
        "stress",
        "soak",
        "weights",
        "clients",
        "nightly",
        "book",
        "dist",
        "clean",
    )
    assert all(f"make {target}" in done.stdout for target in targets)


def test_a_python_that_does_not_run_is_passed_over(folder):
    command(folder, "python3.14", SHIM)
    command(folder, "python3.13", WORKING)
    _, asked = make(folder, ".venv/bin/pip")
    assert asked == ["python3.13 -m venv .venv"]


@pytest.mark.parametrize("newest", ["python3.14", "python3.13", "python3.12", "python3.11", "python3"])
def test_the_newest_python_that_is_supported_is_taken(folder, newest):
    command(folder, "python3.15", WORKING)
    for name in EVERY_PYTHON[EVERY_PYTHON.index(newest) :]:
        command(folder, name, WORKING)
    for name in EVERY_PYTHON[: EVERY_PYTHON.index(newest)]:
        command(folder, name, SHIM)  # this machine's own may lie further on along the path
    _, asked = make(folder, ".venv/bin/pip")
    assert asked == [f"{newest} -m venv .venv"]


@pytest.mark.parametrize(
    ("version", "lacks", "taken"),
    [
        ((3, 10), None, False),
        ((3, 11), None, True),
        ((3, 14), None, True),
        ((3, 15), None, False),
        ((3, 14), "venv", False),
        ((3, 14), "ensurepip", False),
    ],
)
def test_a_python_of_another_version_or_without_what_makes_environments_is_refused(folder, version, lacks, taken):
    """The Makefile's question, answered by a Python that claims to be of that version."""
    claims = f"import sys; sys.version_info = ({version[0]}, {version[1]}, 0); sys.modules[{lacks!r}] = None; "
    claims += "question = sys.argv[2]; del sys.argv[1:3]; exec(question)"
    answers = f"""[ "$1" != -c ] || exec {sys.executable} -c "{claims}" "$@"\n"""
    mine = command(folder, "mine", WORKING.replace("#!/bin/sh\n", f"#!/bin/sh\n{answers}"))
    done, asked = make(folder, ".venv/bin/pip", f"PYTHON={mine}")
    assert (done.returncode, asked) == ((0, ["mine -m venv .venv"]) if taken else (2, []))


def test_without_any_it_says_what_to_do_in_one_line(folder):
    for name in EVERY_PYTHON:
        command(folder, name, SHIM)
    done, asked = make(folder, "test")
    assert (done.returncode, asked) == (2, [])
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("gradus:")]
    assert "3.11 to 3.14" in line and "make PYTHON=" in line


def test_an_install_that_takes_long_says_that_it_goes_on_and_ends_with_its_own_status(folder):
    command(folder, "sleep", "#!/bin/sh\nexec /bin/sleep 0.05\n")
    for status in (0, 3):
        shutil.rmtree(folder / ".venv", ignore_errors=True)
        command(
            folder, "python3.14", WORKING.replace('"-c "*)', f'"-m pip") /bin/sleep 0.4; status={status} ;;\n  "-c "*)')
        )
        done, _ = make(folder, ".venv/.ready-to-serve")
        assert (done.returncode == 0) == (status == 0) and "… still installing\n" in done.stdout
        assert (folder / ".venv/.ready-to-serve").exists() == (status == 0)


def test_a_named_python_is_used_or_refused_by_name(folder):
    command(folder, "python3.14", WORKING)
    done, asked = make(folder, ".venv/bin/pip", "PYTHON=/no/such/python")
    assert (done.returncode, asked) == (2, [])
    assert "/no/such/python" in done.stderr
    mine = command(folder, "mine", WORKING)
    assert make(folder, ".venv/bin/pip", f"PYTHON={mine}")[1] == ["mine -m venv .venv"]


LINUX = """#!/bin/sh
echo "${SYSTEM:-Linux x86_64}"
"""
FOR_CPUS = "python -m uv pip install --python .venv/bin/python --torch-backend cpu --constraint constraints.txt torch"


@pytest.fixture
def machine(folder):
    """A Linux machine with a Python, without an NVIDIA GPU. `nvidia-smi` is looked for where only commands are that a
    recipe needs, since the machine at hand may have one."""
    (folder / "commands" / "nvidia-smi").unlink()
    command(folder, "uname", LINUX)
    command(folder, "python3.14", WORKING)
    for name in ("sh", "dirname", "basename", "mkdir", "cp", "touch", "grep", "make", "cat", "echo", "sleep"):
        (folder / "commands" / name).symlink_to(shutil.which(name))
    return folder


def torch(machine, *arguments, **given) -> tuple[str, list[str]]:
    done, asked = make(machine, ".venv/.torch-chosen", *arguments, path="", **given)
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in asked if "-m venv" not in line]


def test_without_an_nvidia_gpu_pytorch_is_the_one_for_cpus(machine):
    said, asked = torch(machine)
    assert asked == [f"{PIP} --quiet uv", FOR_CPUS]
    assert "PyTorch for CPUs" in said and "gigabytes" not in said


def test_with_one_pip_chooses_unless_it_is_asked_not_to(machine):
    command(machine, "nvidia-smi", "#!/bin/sh\n")
    assert torch(machine)[1] == []
    (machine / ".venv" / ".torch-chosen").unlink()
    assert torch(machine, "CPU=1")[1] == [f"{PIP} --quiet uv", FOR_CPUS]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [((), {"SYSTEM": "Darwin arm64"}), ((), {"SYSTEM": "Linux aarch64"}), (("CPU=0",), {}), ((), {"CONFIGURED": "1"})],
)
def test_pip_chooses_where_its_own_build_is_for_cpus_or_the_user_has_told_it_where(machine, arguments, given):
    configured = """  "-m pip") [ "$3$CONFIGURED" != config1 ] || echo "global.extra-index-url='file:///mine'" ;;\n"""
    command(machine, "python3.14", WORKING.replace('  "-m uv")', configured + '  "-m uv")'))
    assert torch(machine, *arguments, **given)[1] == []


def test_where_that_build_cannot_be_had_it_goes_on_and_says_what_comes(machine):
    said, asked = torch(machine, NO_UV="1")
    assert asked[-1] == FOR_CPUS
    assert "several gigabytes" in said


def test_serve_installs_what_serving_needs_pulls_and_serves(folder):
    command(folder, "python3.14", WORKING)
    _, asked = make(folder, "serve", "MODEL=gemma3-270m", "PHASE=p01", "ARGS=--port 9000")
    assert asked == [
        "python3.14 -m venv .venv",
        f"{PIP} --editable .[server]",
        "python -m gradus pull gemma3-270m",
        "python -m gradus serve --model gemma3-270m --phase p01 --port 9000",
    ]
    _, again = make(folder, "serve")
    assert again == ["python -m gradus pull smollm2-135m", "python -m gradus serve --model smollm2-135m"]


KERNELS = "python -m gradus generate --model random:tiny-llama --device cpu --max-tokens 1 x"


@pytest.mark.parametrize("target", ["serve", "course"])
def test_a_cpu_s_kernels_are_compiled_once_while_the_model_is_fetched(machine, target):
    first = settled(machine, target)
    assert KERNELS in first and "python -m gradus pull smollm2-135m" in first
    assert KERNELS not in settled(machine, target)


@pytest.mark.parametrize(("arguments", "compiles"), [((), False), (("CPU=1",), True)])
def test_with_a_gpu_they_are_compiled_where_it_is_not_used(machine, arguments, compiles):
    command(machine, "nvidia-smi", "#!/bin/sh\n")
    assert (KERNELS in settled(machine, "serve", *arguments)) == compiles


def settled(folder: Path, *arguments: str) -> list[str]:
    """Run make, and return the stand-ins' log once the process that it leaves running has written to it."""
    done, _ = make(folder, *arguments, path="")
    assert done.returncode == 0, done.stderr
    time.sleep(0.5)
    return (folder / "log").read_text().splitlines()


def test_course_installs_what_checks_need_and_pulls_the_lessons_model(folder):
    command(folder, "python3.14", WORKING)
    done, asked = make(folder, "course")
    assert asked == [
        "python3.14 -m venv .venv",
        f"{PIP} --editable .[dev]",
        "python -m gradus pull smollm2-135m",
    ]
    assert "source .venv/bin/activate" in done.stdout


def test_test_lints_and_tests_and_sets_up_once(folder):
    command(folder, "python3.14", WORKING)
    _, asked = make(folder, "test", "ARGS=-x")
    assert asked[1] == f"{PIP} --editable .[dev]"
    checks = ["python -m ruff check .", "python -m ruff format --check .", "python -m mypy"]
    tests = "python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations=15"
    assert asked[2:4] == checks[:2] and sorted(asked[4:]) == sorted([checks[2], f"{tests} -x"])  # side by side
    again = make(folder, "test")[1]
    assert again[:2] == checks[:2] and sorted(again[2:]) == sorted([checks[2], tests])
    assert "pip install" not in " ".join(make(folder, "serve")[1]), "what tests need includes what serving needs"


def test_the_book_says_that_it_is_still_being_built(folder):
    slow = WORKING.replace('  "-c "*)', '  "-m sphinx") sleep 5 ;;\n  "-c "*)')
    command(folder, "python3.14", slow)
    done, _ = make(folder, "book")
    assert done.returncode == 0 and "… still building the book" in done.stdout
    command(folder, "python3.14", slow.replace("sleep 5", "status=3"))
    shutil.rmtree(folder / ".venv")
    failed, _ = make(folder, "book")
    assert failed.returncode == 2 and "build/book/index.html" not in failed.stdout


def test_the_book_s_set_up_is_not_the_one_for_serving(folder):
    command(folder, "python3.14", WORKING)
    make(folder, "book")
    assert f"{PIP} --editable .[server]" in make(folder, "serve")[1]


def test_dist_builds_anew_and_installs_nothing_of_gradus(folder):
    command(folder, "python3.14", WORKING)
    (folder / "dist").mkdir()
    (folder / "dist" / "gradus_llm-0.0.1.tar.gz").touch()
    _, asked = make(folder, "dist")
    assert asked == ["python3.14 -m venv .venv", f"{PIP} --quiet build", "python -m build"]
    assert not (folder / "dist").exists()


PARTS = {
    "weights": "pytest -m weights or weights and stress",
    "stress": "pytest -m stress or hypothesis",
    "clients": "pytest -m clients tests/clients tests/deploy",
}


def nightly(folder: Path) -> tuple[subprocess.CompletedProcess, list[str], str]:
    """Run it; returns what make did, the names of the parts that ran, in order, and all that was asked."""
    done, asked = make(folder, "nightly")
    ran = [part for line in asked for part, tests in PARTS.items() if f" {tests} " in f"{line} "]
    return done, ran, "\n".join(asked)


def test_a_soak_takes_its_minutes_and_a_model_only_if_one_is_given(folder):
    command(folder, "python3.14", WORKING)
    _, asked = make(folder, "soak", "MINUTES=3")
    assert asked[-1] == "python -m benchmarks.soak --minutes 3 --out build/soak.json"
    _, asked = make(folder, "soak", "MODEL=smollm2-135m", "ARGS=--device cuda")
    assert asked[-1] == (
        "python -m benchmarks.soak --minutes 30 --out build/soak.json --model smollm2-135m -- --device cuda"
    )


def test_nightly_runs_the_models_tests_stress_and_the_clients(folder):
    command(folder, "python3.14", WORKING)
    done, ran, asked = nightly(folder)
    assert done.returncode == 0 and ran == ["weights", "stress", "clients"]
    assert asked.index("gradus pull stories15m") < asked.index("pytest") and "tests.clients.installing" in asked


@pytest.mark.parametrize("failing", [*PARTS, "pull"])
def test_a_part_of_the_night_that_fails_keeps_no_other_from_running_and_fails_the_night(folder, failing):
    named = PARTS.get(failing, "gradus pull gemma3-270m")
    fails = WORKING.replace('case "$1 $2" in', f'case "$*" in\n  *"{named}"*) status=3 ;;\nesac\ncase "$1 $2" in')
    command(folder, "python3.14", fails)
    done, ran, _ = nightly(folder)
    assert done.returncode == 2
    assert ran == [part for part in PARTS if part != "weights" or failing != "pull"]


def test_weights_fetches_every_model_that_a_test_names():
    (line,) = re.findall(r"^WEIGHTS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"""mark\.weights\("([\w.-]+)"\)""", source)) - {"no-such-model"} | {*SIZES}
    assert set(line.split()) == named


@pytest.mark.parametrize("failing", ["ruff", "mypy", "pytest", None])
def test_test_fails_where_one_of_its_checks_does(folder, failing):
    command(folder, "python3.14", WORKING.replace('"-c "*)', f'"-m {failing}") status=3 ;;\n  "-c "*)'))
    assert (make(folder, "test")[0].returncode == 0) == (failing is None)


ON_GPU = ["gpu and plans_memory tests/gpu", "gpu and not plans_memory tests/gpu -n 5", "gpu --ignore tests/gpu"]


@pytest.mark.parametrize("quick", [False, True])
def test_on_a_gpu_one_process_plans_memory_and_what_measures_the_gpu_has_it_to_itself(folder, quick):
    command(folder, "python3.14", WORKING)
    done, asked = make(folder, "test-gpu", "ARGS=-x", *(["QUICK=1"] if quick else []))
    tests = [line.removeprefix("python -m pytest -m ") for line in asked if "-m pytest" in line]
    wanted = [f"quick and {part}" for part in ON_GPU[:2]] if quick else ON_GPU
    assert done.returncode == 0 and len(tests) == len(wanted)
    for part in wanted:  # two of them begin at the same time
        assert any(line.startswith(part) and line.endswith("--durations=15 -x") for line in tests)
    assert quick or tests[2].startswith(ON_GPU[2])


@pytest.mark.parametrize(("statuses", "ends"), [("0 0 1", 1), ("1 0 0", 1), ("0 2 5", 2), ("5 0 5", 0), ("5 5 5", 5)])
def test_a_part_that_fails_fails_all_on_a_gpu_and_one_without_tests_does_not(folder, statuses, ends):
    parts = zip(("and plans", "not plans", "--ignore"), statuses.split(), strict=True)
    cases = "".join(f'*"{part}"*) status={status} ;;\n' for part, status in parts)
    command(folder, "python3.14", WORKING.replace('case "$1 $2" in', f'case "$*" in\n{cases}esac\ncase "$1 $2" in'))
    done, _ = make(folder, "test-gpu")
    assert (done.returncode == 0) == (ends == 0) and (ends == 0 or f"Error {ends}" in done.stderr)


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt", "setup.py"])
def test_a_change_of_dependencies_installs_anew(folder, changed):
    command(folder, "python3.14", WORKING)
    make(folder, "lint")
    later = (folder / ".venv" / ".ready-to-test").stat().st_mtime + 10
    os.utime(folder / changed, (later, later))
    assert any("pip install" in line for line in make(folder, "lint")[1])


def test_an_installation_that_failed_is_tried_again(folder):
    command(folder, "python3.14", WORKING)
    make(folder, ".venv/bin/pip")
    python = folder / ".venv" / "bin" / "python"
    python.write_text(SHIM)
    assert make(folder, "lint")[0].returncode == 2
    python.write_text(WORKING)
    assert "pip install" in make(folder, "lint")[1][0]


def test_ci_runs_what_a_developer_runs_and_passes_its_exit_code_on(folder):
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    for name in EVERY_PYTHON:
        command(folder, name, SHIM)
    environment = {"PATH": f"{folder / 'commands'}:/usr/bin:/bin"}
    done = subprocess.run([folder / ".ci" / "run"], cwd="/", env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "gradus:" in done.stderr
