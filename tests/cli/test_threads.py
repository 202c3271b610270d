"""The command line decides how threads wait, before torch can read it; a user's own choice and a program's stay."""

import subprocess
import sys

import pytest

from gradus.device import threads
from gradus.device.threads import BRIEFLY, CHOICES, spin_briefly
from tests.cli.conftest import ROOT
from tests.pairwise import first

# Runs the command as the console script does, with a torch that only says what its OpenMP would have read.
STAND_IN = """
import os, sys
from importlib.abc import MetaPathFinder

class Torch(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            print("torch finds", os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"))
            sys.exit(0)

sys.meta_path.insert(0, Torch())
sys.argv = ["gradus", "generate", "x", "--model", "random:tiny-llama"]
from gradus.cli import main
sys.exit(main())
"""


def run(code: str, **environment: str) -> str:
    """Return the output of a fresh interpreter whose environment has only these variables."""
    environment |= {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_finds_the_setting_when_it_is_loaded():
    assert run(STAND_IN) == "torch finds passive 2000\n"


@pytest.mark.parametrize(
    ("name", "value", "found"),
    first([("OMP_WAIT_POLICY", "active", "active None"), ("GOMP_SPINCOUNT", "5000", "None 5000")]),
)
def test_a_users_own_choice_stays(name, value, found):
    assert run(STAND_IN, **{name: value}) == f"torch finds {found}\n"


@pytest.mark.parametrize("name", CHOICES)
def test_any_choice_of_the_user_leaves_the_environment_as_it_is(name, monkeypatch):
    monkeypatch.setattr(threads.sys, "modules", {})
    environment = {name: "0"}
    spin_briefly(environment)
    assert environment == {name: "0"}


def test_an_environment_without_a_choice_gets_ours_unless_torch_is_loaded(monkeypatch):
    for modules, added in (({}, BRIEFLY), ({"torch": None}, {})):
        monkeypatch.setattr(threads.sys, "modules", modules)
        environment = {"PATH": "/bin"}
        spin_briefly(environment)
        assert environment == {"PATH": "/bin", **added}


@pytest.mark.parametrize("imported", ["gradus", "gradus.cli"])
def test_importing_changes_no_environment(imported):
    code = f"import os\nbefore = dict(os.environ)\nimport {imported}\nassert dict(os.environ) == before"
    run(code)


def test_main_called_by_a_program_leaves_its_environment_alone():
    code = "import os\nfrom gradus.cli import main\nmain(['--version'])\nprint(os.environ.get('OMP_WAIT_POLICY'))"
    assert run(code).splitlines()[-1] == "None"
