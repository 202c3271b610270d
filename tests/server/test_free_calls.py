"""A server whose model is free to call: the calls of its answers are constrained, unless an option says otherwise."""

import pytest

from tests.server.conftest import running
from tests.server.saying import SayingCore

TOOL = {"name": "look_up", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}
ODD = {"name": "odd", "parameters": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}}


def constraint_of(server, *tools, **fields):
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": tool} for tool in tools],
    }
    response = server.http.post("/v1/chat/completions", json=body | fields)
    assert response.status_code == 200, response.text
    return server.engine.requests[-1].params.structured


def test_calls_obey_the_schemas_of_all_tools_and_other_settings_stay_possible():
    with running(SayingCore) as server:
        found = constraint_of(server, TOOL, min_tokens=1, ignore_eos=False)
        assert found.lazy is not None and '"place"' in found.grammar
        assert constraint_of(server, TOOL, tool_choice="none") is None


def test_a_schema_that_cannot_be_kept_fails_no_request_that_does_not_insist_on_it():
    with running(SayingCore) as server:
        assert '"place"' in constraint_of(server, TOOL, ODD).grammar
        tools = [{"type": "function", "function": ODD | {"strict": True}}]
        body = {"messages": [{"role": "user", "content": "x"}], "tools": tools}
        refused = server.http.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400 and "\n" not in refused.json()["error"]["message"]


@pytest.mark.parametrize("strict", [False, True])
def test_an_option_leaves_the_calls_of_other_than_strict_tools_free(strict):
    with running(SayingCore, tool_schemas="strict") as server:
        assert (constraint_of(server, TOOL | {"strict": strict}) is not None) == strict
