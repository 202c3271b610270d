"""Claude Code when something goes wrong: it goes on, or says why it cannot."""

import dataclasses
from itertools import pairwise

import pytest

from tests.clients.agent import ANSWER, say
from tests.clients.failing import FailingCore, busy_server
from tests.server.conftest import running
from tests.server.saying import SayingCore

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

SETTINGS = {
    "ANTHROPIC_AUTH_TOKEN": "none",
    "ANTHROPIC_MODEL": "served",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}


@pytest.fixture
def claude(client):
    """Run Claude Code against a server: returns what it says, however it ends."""

    def asked(server, text, *flags):
        home = dataclasses.replace(client("claude-code"), server=server)
        try:
            return home.run("claude", "-p", text, *flags, ANTHROPIC_BASE_URL=server.url, **SETTINGS)
        except AssertionError as failed:
            return str(failed)

    return asked


def test_a_stream_that_breaks_is_asked_for_again(claude):
    with running(lambda: FailingCore(lambda prompt: ANSWER, size=3, context_length=2**20)) as server:
        assert ANSWER[:17] in claude(server, "Hi")
        assert server.engine.times == 0 and len(server.engine.requests) == 2


def test_a_prompt_that_is_too_long_is_explained(claude):
    with running(lambda: SayingCore(say, context_length=4096)) as server:
        said = claude(server, "Hi")
        assert "too long" in said.lower() or "context" in said.lower(), said


def test_a_busy_server_is_asked_again(claude):
    with busy_server() as server:
        assert "gradus was here" in claude(server, "Hi", "--allowedTools", "Bash")
        assert server.client.counts.rejected


def test_what_a_turn_adds_is_all_that_must_be_computed(claude, server):
    assert "gradus was here" in claude(server, "Hi", "--allowedTools", "Bash")
    assert "gradus was here" in claude(server, "Go on", "--continue", "--allowedTools", "Bash")
    prompts = [request.prompt for request in server.engine.requests]
    assert len(prompts) >= 3  # the call's result makes a turn, too
    for before, after in pairwise(prompts):
        differs = next((place for place, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), 0)
        assert (differs or len(before)) > 0.9 * len(after)
