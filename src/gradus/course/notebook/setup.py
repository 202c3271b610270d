"""The first cell of every notebook: this file below its docstring, and a call of `begin`. It needs no gradus yet.

It finds the course, or clones it, and installs what it needs into the notebook's Python: minutes the first time on a
host that has nothing, no time where `make course` has run.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

NEEDED = ("torch", "tokenizers", "llguidance", "numba", "pytest", "pytest_timeout", "hypothesis")


def course(repository: str) -> Path:
    """Find the clone that this notebook is in or next to, or make one."""
    here = Path.cwd()
    for folder in (here, *here.parents, here / "gradus"):
        if (folder / "phases" / "p00_baseline").is_dir():
            return folder
    if not repository:
        raise SystemExit('The course is not here: write where from, as in begin("https://github.com/OWNER/gradus")')
    subprocess.run(["git", "clone", "--depth", "1", repository, "gradus"], check=True)
    return here / "gradus"


def install() -> None:
    """Install what is missing. uv finds the build of PyTorch for CPUs, which is a fraction of what pip takes."""
    if all(importlib.util.find_spec(name) is not None for name in NEEDED):
        return
    print("Installing what the course needs: some minutes, once …")
    pip, course = [sys.executable, "-m", "pip", "install", "--quiet"], ["--editable", ".[notebooks]"]
    uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--torch-backend", "cpu"]
    subprocess.run([*pip, "uv"], check=False)
    if subprocess.run([*uv, *course], check=False).returncode != 0:
        subprocess.run([*pip, *course], check=True)


def begin(repository: str = "") -> None:
    """Work in the course's folder from here on."""
    os.chdir(course(repository))
    install()
    sys.path[:0] = [str(Path("src").resolve()), str(Path.cwd())]  # what was just installed, without a restart
    print("The course is at", Path.cwd())
