"""The examples in docs/protocol.md are complete: a program that is sent them answers as the page shows."""

import json
import re
from pathlib import Path

import pytest

from gradus.course.foreign.program import Program

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
MOST_LINES = 100
LINES = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()
STREAM = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.mark.parametrize("arguments", ["", " {port}"])
def test_the_messages_are_answered_as_the_page_shows(arguments, engine, models):
    with Program(f"{engine}{arguments}", 20) as program:
        program.wait_until_listening()
        for message, answer in zip(LINES[::2], LINES[1::2], strict=True):
            sent = json.loads(message.replace("models/weights32", str(models.given())))
            assert program.send(sent) == json.loads(answer)


def test_the_stream_is_written_as_the_page_shows(engine, models):
    asked, _, shown = STREAM.partition("\n\n")
    body = json.loads(asked.removeprefix("POST /generate"))
    with Program(f"{engine} {{port}}", 20) as program:
        program.wait_until_listening()
        settings = {"sequences": 1, "pages": 0, "places": 1, "pace_ms": 1}
        assert program.send({"do": "configure", "model": str(models.given()), **settings}) == {"ok": True}
        with program.http.request("POST", "/generate", body, 20) as response:
            assert response.read().decode().strip() == shown.strip()


def test_the_page_is_a_page():
    assert len(PAGE.splitlines()) <= MOST_LINES
