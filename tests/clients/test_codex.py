"""Codex when something goes wrong: it goes on, or says why it cannot."""

import dataclasses
import subprocess

import pytest

from tests.clients.agent import ANSWER, say
from tests.clients.failing import FailingCore, busy_server
from tests.clients.page import read
from tests.server.conftest import running
from tests.server.saying import SayingCore

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

EXEC = ("codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access")


@pytest.fixture
def codex(client):
    """Run Codex against a server, configured as the page says: returns what it says, however it ends."""

    def asked(server, text):
        home = dataclasses.replace(client("codex"), server=server)
        for path, content in read()["codex"].files.items():
            home.write(path, content)
        try:
            return home.run(*EXEC, text)
        except AssertionError as failed:
            return str(failed)
        except subprocess.TimeoutExpired as late:
            return f"it did not end: {late.stdout} {late.stderr}"

    return asked


def test_a_stream_that_breaks_is_asked_for_again(codex):
    with running(lambda: FailingCore(lambda prompt: ANSWER, size=3, context_length=2**20)) as server:
        assert ANSWER[:17] in codex(server, "Hi")
        assert server.engine.times == 0 and len(server.engine.requests) == 2


def test_a_prompt_that_is_too_long_ends_the_turn_with_a_reason(codex):
    with running(lambda: SayingCore(say, context_length=2048)) as server:
        assert "model's context window" in codex(server, "Hi")
        assert not server.engine.requests


def test_a_busy_server_is_asked_again(codex):
    with busy_server() as server:
        assert "gradus was here" in codex(server, "Hi")
        assert server.client.counts.rejected
