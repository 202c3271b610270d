"""docs/operations.md: every metric, every limit and every state that a server can be in has its place there."""

import re
from pathlib import Path
from typing import get_args

import pytest

from gradus.config.description import described
from gradus.server.config import ServerConfig
from gradus.server.limits import limits
from gradus.server.metrics.families import FAMILIES
from gradus.server.supervisor import State

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


OF_THE_DEVICE = {"threads", "tensor_parallel", "pipeline_parallel", "runner", "sleep_after"}
"""Settings next to the limits that bound no client."""


def section(name):
    return PAGE.partition(f"## {name}\n")[2].partition("\n## ")[0]


def named(text):
    return set(re.findall(r"`([^`\n]+)`", text))


def test_it_can_be_read_in_one_go():
    assert len(PAGE.splitlines()) <= 300


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name or family.vllm)
def test_every_metric_is_named_with_what_to_do(family):
    own = f"{family.name}_total" if family.kind == "counter" else family.name
    assert (own if family.name else f"vllm:{family.vllm}") in named(section("Metrics"))


def test_every_limit_is_named():
    shown = named(section("Limits"))
    settings = {name for name, one in described(ServerConfig).items() if one.panel == "Limits"}
    assert settings - OF_THE_DEVICE | limits(ServerConfig(), None).keys() <= shown


def test_every_state_is_named():
    words = set(re.findall(r"\w+", section("Faults")))
    for state in set(get_args(State)) - {"ready", "asleep", "waking"}:
        assert state in words, state
    assert {"sleeps", "wakes"} <= words


def test_messages_are_those_of_the_server():
    """The page quotes the source word for word, except for numbers."""
    sources = "".join(path.read_text() for path in (Path(__file__).parents[2] / "src/gradus/server").rglob("*.py"))
    flat = re.sub(r"\{[^{}]*\}|\d+", "#", sources)
    messages = [text for text in named(section("Faults")) if len(text) > 25]
    assert len(messages) == 3
    for message in messages:
        words = re.sub(r"\d+", "#", message).replace("SIGKILL", "#").removeprefix("the engine stopped: ")
        assert words.removeprefix("its process ") in flat, message


def test_every_alert_has_a_heading_for_links():
    headings = re.findall(r"^### (\w+)$", section("Alerts"), re.MULTILINE)
    assert len(headings) == len(set(headings)) > 10 and all(name.startswith("Gradus") for name in headings)
