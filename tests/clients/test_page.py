"""docs/clients.md does what it says: every client's blocks, run as they are on the page."""

import pytest

from tests.clients.agent import ANSWER, PROOF
from tests.clients.page import ADDRESS, PAGE, commands, read

CLIENTS = read()
AGENTS = ("claude-code", "codex", "opencode", "continue")
"""Those that run commands for the model."""
SAID = {"lm-eval": "|capitals|", "instructor": "36", "openai-agents": "sunny in Ulm"}
"""What a client says at the end, where it is not the model's own words."""


@pytest.mark.clients
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name, found in CLIENTS.items() if found.runs])
def test_what_the_page_says_of_a_client_works(client, scoring, name):
    home, page = client(name, scoring if name == "lm-eval" else None), CLIENTS[name]
    for path, content in page.files.items():
        home.write(path, content)
    said = ""
    for language, text in page.runs:
        said += home.python(text) if language == "python" else home.shell("\n".join(commands(text)))
    if name in AGENTS:
        assert (home.work / PROOF).read_text() == "gradus was here\n"
        assert "gradus was here" in said
    else:
        assert SAID.get(name, ANSWER[:17]) in said


# -- the page itself, which `make test` reads --------------------------------------------------------------------------


def test_every_client_of_the_page_can_be_installed_and_run():
    assert len(CLIENTS) >= 14
    for name, found in CLIENTS.items():
        assert found.pip or found.npm, f"{name}: the page does not say how to install it"
        assert found.runs, f"{name}: the page does not say how to run it"
        assert ADDRESS in "".join([*found.files.values(), *(text for _, text in found.runs)])


def test_no_block_of_a_client_is_left_out():
    """A block without a client's name is what starts the server, or belongs to nobody's program."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("```console\n") == 1 and "$ gradus serve" in text
    assert text.count("\n```\n") == text.count(" client=") + 1


def test_commands_are_read_with_what_continues_them():
    assert commands("$ a b \\\n    c\nan answer\n$ d 'e  f'\n") == ["a b c", "d 'e  f'"]


def test_a_block_that_nothing_would_run_is_an_error():
    with pytest.raises(ValueError, match="nothing runs"):
        read("```toml client=codex\nmodel = 1\n```\n")
