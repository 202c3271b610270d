"""The OpenAPI schema of /generate says what the engine's own dataclasses say, wherever docstrings are."""

import json
import subprocess
import sys

import pytest

from gradus.engine.meaning import meanings
from gradus.engine.request import SamplingParams, SchedulingParams
from gradus.server.api.openapi import openapi_of_generate
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
