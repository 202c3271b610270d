"""Pydantic's types as `response_format`: all are accepted, and the header names what an answer need not obey."""

import datetime
import decimal
import enum
import ipaddress
import pathlib
import typing
import uuid

import pydantic
import pytest

from tests.server.test_final import final


class Color(enum.Enum):
    RED, GREEN = "red", "green"


TYPES = {
    set[int]: "uniqueItems",
    frozenset[str]: "uniqueItems",
    dict[Color, int]: "",
    dict[typing.Literal["a", "b"], int]: "",
    dict[str, int]: "",
    dict[uuid.UUID, int]: "propertyNames",
    pathlib.Path: "format=path",
    pydantic.SecretStr: "format=password",
    bytes: "format=binary",
    pydantic.Base64Str: "format=base64",
    pydantic.Json: "",
    pydantic.AnyUrl: "",
    pydantic.conlist(int, max_length=3): "",
    pydantic.constr(pattern=r'^[^"]{1,3}$'): "",
    datetime.datetime: "",
    datetime.timedelta: "",
    decimal.Decimal: "",
    ipaddress.IPv4Address: "",
    ipaddress.IPv4Network: "format=ipv4network",
    uuid.UUID: "",
    tuple[int, str]: "",
    Color | None: "",
}  # fmt: skip


@pytest.fixture(scope="module")
def server():
    from tests.server.conftest import running

    with running(final) as server:
        yield server


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_a_field_of_any_type_is_accepted(server, kind, stream):
    model = pydantic.create_model("Answer", field=(kind, ...))
    format = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": model.model_json_schema()}}
    body = {"model": "random:tiny-llama", "prompt": "a", "max_tokens": 3, "response_format": format, "stream": stream}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-gradus-ignored", "") == TYPES[kind]
