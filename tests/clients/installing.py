"""Each client in an environment and a home of its own, in build/clients: none sees another, or anything of the user's.

    python -m tests.clients.installing [client …]

A client that cannot be installed leaves a line that says why, and its tests are skipped with it. Nothing that a package
brings is run while it is installed: npm's packages are unpacked without their scripts.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.clients.page import ROOT, Client, read

HOMES = ROOT / "build" / "clients"

TOOLS = {
    "schemathesis": Client("schemathesis", pip=["schemathesis"]),
    "prometheus": Client("prometheus", pip=["prometheus-client"]),
    "ray": Client("ray", pip=["ray[serve]>=2.56"]),
}
"""Programs that test the server or run it, and are no clients of models."""

MACHINE = f"{sys.platform}-{'arm64' if platform.machine() in ('arm64', 'aarch64') else 'x64'}"
PLATFORM = {"@anthropic-ai/claude-code": f"@anthropic-ai/claude-code-{MACHINE}", "opencode-ai": f"opencode-{MACHINE}"}
"""Packages whose script copies a program out of another package, which is taken itself."""


def clients() -> dict[str, Client]:
    return read() | TOOLS


def folder(name: str) -> Path:
    return HOMES / name


def obstacle(name: str) -> str | None:
    """Why a client cannot be run; None if it is installed."""
    if (folder(name) / "installed").is_file():
        return None
    failed = folder(name) / "failed"
    return failed.read_text().strip() if failed.is_file() else f"{name} is not installed: make clients"


def install(client: Client) -> str | None:
    """Install a client, unless what it needs is there. Returns the obstacle, if there is one."""
    home, wanted = folder(client.name), " ".join([*client.pip, *client.npm])
    stamp = home / "installed"
    if stamp.is_file() and stamp.read_text().splitlines()[0] == wanted:
        return None
    shutil.rmtree(home, ignore_errors=True)
    (home / "home").mkdir(parents=True)
    (home / "bin").mkdir()
    try:
        versions = [*_pip(home, client.pip), *_npm(home, client.npm)]
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        reason = f"{client.name} cannot be installed here: {(said.strip().splitlines() or ['no reason given'])[-1]}"
        (home / "failed").write_text(reason)
        return reason
    stamp.write_text("\n".join([wanted, *versions]))
    return None


def _pip(home: Path, packages: list[str]) -> list[str]:
    if not packages:
        return []
    venv.create(home / "venv", with_pip=True)
    python = str(home / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", "--no-compile", *packages])
    return _run([*pip, "freeze"]).splitlines()


def _npm(home: Path, packages: list[str]) -> list[str]:
    if not packages:
        return []
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("there is no npm on this machine")
    taken = [PLATFORM.get(package, package) for package in packages]
    _run([npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(home), *taken])
    for package in taken:
        for program in _programs(home / "node_modules" / package):
            (home / "bin" / program.name).symlink_to(program)
    for program in (home / "node_modules" / ".bin").glob("*"):
        (home / "bin" / program.name).symlink_to(program)
    return _run([npm, "ls", "--prefix", str(home)]).splitlines()[1:]


def _programs(package: Path) -> list[Path]:
    """The executables that a platform's package consists of."""
    found = [path for folder in (package, package / "bin") for path in folder.glob("*")]
    return [path for path in found if path.is_file() and os.access(path, os.X_OK) and not path.suffix]


def _run(command: list[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def versions(client: Client) -> str:
    """The packages of an installed client, with their versions."""
    names = [PLATFORM.get(package, package).partition("[")[0] for package in [*client.pip, *client.npm]]
    names = [name.replace("-", "[-_]") for name in names]
    lines = (folder(client.name) / "installed").read_text().splitlines()[1:]
    return ", ".join(
        line.lstrip("└├─ ") for line in lines if any(re.search(rf"(^|\s){name}[=@]", line) for name in names)
    )


def main(names: list[str]) -> None:
    known = clients()
    for name in names or known:
        if name not in known:
            sys.exit(f"no client is called {name!r}; there are {', '.join(known)}")
        obstacle = install(known[name])
        print(f"{name}: {obstacle or versions(known[name])}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
