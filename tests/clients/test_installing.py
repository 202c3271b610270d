"""What cannot be installed says so in one line, and what is installed is not installed again."""

import subprocess

import pytest

from tests.clients import installing
from tests.clients.page import Client


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """The commands that installing runs; none of them is."""
    commands = []
    monkeypatch.setattr(installing, "HOMES", tmp_path)
    monkeypatch.setattr(installing, "_run", lambda command: commands.append(command) or "one==1.0\n")
    monkeypatch.setattr(installing.venv, "create", lambda *_, **__: None)
    return commands


def test_a_client_is_installed_once_and_again_when_the_page_names_other_packages(asked):
    assert installing.install(Client("one", pip=["one"])) is None
    assert installing.obstacle("one") is None and len(asked) == 2  # pip install, pip freeze
    assert installing.install(Client("one", pip=["one"])) is None and len(asked) == 2
    assert installing.install(Client("one", pip=["one[api]"])) is None and len(asked) == 4
    assert installing.versions(Client("one", pip=["one[api]"])) == "one==1.0"


def test_scripts_of_packages_are_not_run(asked, monkeypatch):
    monkeypatch.setattr(installing.shutil, "which", lambda name: f"/bin/{name}")
    installing.install(Client("two", npm=["opencode-ai"]))
    assert "--ignore-scripts" in asked[0] and asked[0][-1] == f"opencode-{installing.MACHINE}"


def test_a_client_that_cannot_be_installed_leaves_a_reason(asked, monkeypatch):
    monkeypatch.setattr(installing.shutil, "which", lambda name: None)
    reason = installing.install(Client("two", npm=["two"]))
    assert reason == installing.obstacle("two") == "two cannot be installed here: there is no npm on this machine"

    def fails(command):
        raise subprocess.CalledProcessError(1, command, stderr="a warning\nno such package\n")

    monkeypatch.setattr(installing, "_run", fails)
    assert installing.install(Client("three", pip=["three"])) == "three cannot be installed here: no such package"


def test_a_client_that_was_never_installed_says_how(asked):
    assert installing.obstacle("four") == "four is not installed: make clients"
