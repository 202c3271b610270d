"""The OpenAPI schema of /generate says what the engine's own dataclasses say, wherever docstrings are; those of the
other protocols take what clients send."""

import json
import subprocess
import sys

import pytest
from jsonschema import Draft202012Validator

from gradus.engine.meaning import meanings
from gradus.engine.request import SamplingParams, SchedulingParams
from gradus.server.api.openapi import openapi_of_generate
from gradus.server.api.schemas import bodies
from gradus.server.config import ServerConfig

PRINT = """
import json
from gradus.server.api import openapi as schemas
from gradus.server.config import ServerConfig

print(schemas.openapi_of_generate.__doc__)
print(json.dumps(schemas.openapi_of_generate(ServerConfig())))
"""


def schema() -> dict:
    return openapi_of_generate(ServerConfig())["requestBody"]["content"]["application/json"]["schema"]


@pytest.mark.parametrize("params", [SamplingParams, SchedulingParams])
def test_a_field_is_described_by_its_meaning_in_the_words_of_json(params):
    properties = schema()["properties"]
    for name, meaning in meanings(params).items():
        assert properties[name]["description"].startswith(meaning.replace("None", "null"))
    assert properties["seed"]["description"].endswith("null draws one.")


def test_the_schema_is_the_same_when_docstrings_are_stripped():
    done = subprocess.run([sys.executable, "-OO", "-c", PRINT], capture_output=True, text=True, check=True)
    docstring, printed = done.stdout.splitlines()
    assert docstring == "None"
    assert json.loads(printed) == json.loads(json.dumps(openapi_of_generate(ServerConfig())))


# -- the other protocols -----------------------------------------------------------------------------------------------

MESSAGES = [{"role": "user", "content": "Hi"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
BODIES = [
    ("/v1/completions", {"prompt": ["a", "b"], "logprobs": None, "max_tokens": 5, "best_of": 1}),
    ("/v1/completions", {"prompt": [[1, 2]], "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stop": None, "seed": 7, "unknown": {}}),
    ("/v1/chat/completions", {"messages": PARTS, "tool_choice": "auto", "parallel_tool_calls": True}),
    ("/v1/responses", {"input": "Hi", "store": False, "include": ["reasoning.encrypted_content"]}),
    ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": "a", "output": "b"}]}),
    ("/v1/messages", {"max_tokens": 5, "messages": PARTS, "thinking": {"type": "adaptive", "display": "omitted"}}),
    ("/v1/messages/count_tokens", {"messages": MESSAGES, "tools": [{"type": "web_search_20250305", "name": "w"}]}),
    ("/tokenize", {"messages": MESSAGES}),
    ("/detokenize", {"tokens": [1, 2]}),
]
WRONG = [
    ("/v1/completions", {"prompt": 5}),
    ("/v1/chat/completions", {"messages": "Hi"}),
    ("/v1/responses", {}),
    ("/v1/messages", {"messages": MESSAGES}),
    ("/v1/messages", {"max_tokens": 0, "messages": MESSAGES}),
    ("/detokenize", {"tokens": ["a"]}),
]


@pytest.mark.parametrize(
    ("path", "body", "right"), [*((*each, True) for each in BODIES), *((*each, False) for each in WRONG)]
)
def test_a_schema_takes_what_clients_send_and_not_what_is_refused(path, body, right):
    schema = bodies(ServerConfig())[path]
    Draft202012Validator.check_schema(schema)
    assert Draft202012Validator(schema).is_valid(body) == right


def test_every_route_that_takes_a_body_describes_it(real):
    described = real.http.get("/openapi.json").json()["paths"]
    posts = {path: methods["post"] for path, methods in described.items() if "post" in methods}
    assert set(posts) == {"/generate", *bodies(ServerConfig())}
    for path, post in posts.items():
        assert post["requestBody"]["content"]["application/json"]["schema"]["properties"], path
