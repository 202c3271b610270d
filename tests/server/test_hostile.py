"""Nonsense, from careless to hostile: an answer in the 400s, or a closed connection, and the engine never notices.

Named after the vulnerabilities of other engines where they teach one: docs/serving.md lists them.
"""

import gzip
import json
import logging
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradus.engine.request import ModelLimits
from gradus.server.config import ServerConfig
from gradus.server.engine.messages import ModelInfo
from gradus.server.limits import body_limit
from tests.server.conftest import eventually, read_answer, running
from tests.server.scripted import ScriptedCore

JSON_POST = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def server():
    with running(receive_timeout=2, max_waiting=64) as server:
        yield server


@pytest.fixture(autouse=True)
def the_server_is_unharmed(server, caplog):
    yield
    assert eventually(server.idle)
    assert server.health() == 200
    assert server.generate(prompt="a", max_tokens=3).json()["token_ids"] == [0, 1, 2]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def post(server, content, **headers):
    headers = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return server.http.post("/generate", content=content, headers=headers)


def refusal(answer, status=400):
    """The error of an answer that must be a refusal."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == status and error["message"] and error["type"] == "invalid_request"
    return error


# -- bodies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b"{}",
        b'{"prompt": "\xff"}',
        b'\xef\xbb\xbf{"prompt": "a"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "\\udc00": 1}',
        b'{"prompt": "a", "stop": ["\\ud800"]}',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": -Infinity}',
        b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "max_tokens": ' + b"9" * 4000 + b"}",
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": ' + b"[" * 65 + b"]" * 65 + b"}",
        b'{"a":' * 100_000,
        b'{"prompt": "a\x00b"}',
    ],
    ids=lambda body: body[:30].decode("utf-8", "backslashreplace"),
)
def test_a_body_that_is_not_a_request_is_refused(server, body):
    refusal(post(server, body))


def test_an_escaped_nul_is_text_like_any_other(server):
    assert post(server, b'{"prompt": "a\\u0000b", "max_tokens": 1}').status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "",
                                  "application/json; charset=utf-16", "application/jsonp"])  # fmt: skip
def test_only_json_is_taken(server, kind):
    assert refusal(post(server, b'{"prompt": "a"}', content_type=kind), 415)["param"] == "body"


@pytest.mark.parametrize(
    "kind", ["application/json", 'Application/JSON; Charset="UTF-8"', "application/json;charset=utf8"]
)
def test_json_may_call_itself_so_in_every_usual_way(server, kind):
    assert post(server, b'{"prompt": "a", "max_tokens": 1}', content_type=kind).status_code == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, gzip"])
def test_a_compressed_body_is_refused_without_being_unpacked(server, coding):
    bomb = gzip.compress(b"a" * (10 << 20))
    refusal(post(server, bomb, content_encoding=coding), 415)


@pytest.mark.parametrize("length", [str((1 << 20) + 1), "1000000000", "9" * 18])
def test_an_announced_size_is_refused_before_anything_is_read(server, length):
    connection = server.send(b'{"prompt":', headers=[f"Content-Length: {length}"])
    status, headers, body = read_answer(connection)
    assert status == 413 and "connection: close" in headers
    assert json.loads(body)["error"]["limit"] == "at most 1048576 bytes"


def test_a_body_without_an_announced_size_is_counted(server, process):
    before = process.memory_info().rss
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    connection = server.send(b"", headers=["Transfer-Encoding: chunked"])
    try:
        for _ in range(2000):  # 128 MiB, if it were read
            connection.sendall(chunk)
    except OSError:
        pass
    else:
        raise AssertionError("all of it was read")
    assert process.memory_info().rss < before + (16 << 20)


def test_a_body_of_just_the_limit_is_read(server):
    body = b'{"prompt": "a", "max_tokens": 1}'
    assert post(server, body + b" " * ((1 << 20) - len(body))).status_code == 200
    refusal(post(server, body + b" " * ((1 << 20) - len(body) + 1)), 413)


@pytest.mark.parametrize(("context", "most"), [(None, 1 << 20), (4096, 1 << 20), (131_072, 16 * 131_072 + (1 << 18))])
def test_a_body_may_be_as_large_as_the_context_could_need(context, most):
    limits = context and ModelLimits(vocab_size=10, context_length=context)
    info = context and ModelInfo("m", "final", None, "cpu", "float32", limits, {})
    assert body_limit(ServerConfig(), info) == most
    assert body_limit(ServerConfig(max_body_bytes=77), info) == 77


def test_the_limit_of_a_body_grows_with_the_context(serving):
    server = serving(partial(ScriptedCore, context_length=100_000))
    most = server.stats()["limits"]["max_body_bytes"]
    assert most == 1_600_000 + (1 << 18)
    longest = ("1," * 99_998 + "1").encode()
    body = b'{"max_tokens": 1, "prompt": [%s]}' % longest
    assert post(server, body + b" " * (most - len(body))).status_code == 200
    refusal(post(server, body + b" " * (most - len(body) + 1)), 413)


@pytest.mark.parametrize("headers", [["X: " + "y" * 40_000], [f"X-{number}: y" for number in range(150)]])
def test_headers_have_a_limit(server, headers):
    status, _, _ = read_answer(server.send(b"{}", headers=headers))
    assert status in (400, 431)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS to a plain port
        b"GET\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        JSON_POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        JSON_POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /%ff%fe%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"\r\n" * 20_000,
        b"\x00" * 1000,
    ],
)
def test_what_is_not_http_gets_no_further(server, raw):
    status = status_of(server, raw)
    assert status is None or 400 <= status < 500


def status_of(server, raw):
    """The status that raw bytes are answered with; None for a connection closed without a word."""
    with server.connect() as connection:
        try:
            connection.sendall(raw)
            connection.shutdown(1)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        except (ConnectionError, OSError):
            return None
    return int(answer.split()[1]) if answer else None


VALID = JSON_POST + b"Content-Length: 32\r\nConnection: close\r\n\r\n" + b'{"prompt": "a", "max_tokens": 1}'


@MANY
@given(at=st.integers(0, len(VALID)), skip=st.integers(0, 20), noise=st.binary(max_size=40))
def test_any_bytes_anywhere_in_a_request(server, at, skip, noise):
    status = status_of(server, VALID[:at] + noise + VALID[at + skip :])
    assert status is None or status < 500


@MANY
@given(st.binary(max_size=300))
def test_any_bytes_at_all(server, raw):
    status = status_of(server, raw)
    assert status is None or status < 500


@MANY
@given(st.binary(max_size=300))
def test_any_bytes_as_a_body(server, body):
    assert post(server, body).status_code in (200, 400)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([2**31, 2**63, 2**64, -1, 1e308]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["prompt", "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
     "frequency_penalty", "logit_bias", "seed", "n", "stop", "stop_token_ids", "min_tokens", "ignore_eos", "logprobs",
     "stream", "timeout", "priority", "deadline", "cache_salt"]
)  # fmt: skip


@MANY
@given(st.dictionaries(FIELDS, JSON, max_size=4), st.booleans())
def test_any_values_in_any_fields(server, fields, with_prompt):
    body = ({"prompt": "a", "max_tokens": 2} if with_prompt else {}) | fields
    answer = post(server, json.dumps(body).encode())
    assert answer.status_code in (200, 400, *([504] if {"timeout", "deadline"} & set(fields) else []))
    if answer.status_code == 400:
        assert answer.json()["error"]["param"]
        assert "Traceback" not in answer.text


# -- fields ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "got"),
    [
        ("max_tokens", 0, "0"),
        ("max_tokens", -1, "-1"),
        ("max_tokens", 2**31, "2147483648"),
        ("max_tokens", 2**63, str(2**63)),
        ("max_tokens", True, "True"),
        ("max_tokens", "5", "'5'"),
        ("max_tokens", 1.5, "1.5"),
        ("min_tokens", 9, "9"),
        ("min_tokens", -1, "-1"),
        ("n", 0, "0"),
        ("n", -1, "-1"),
        ("n", 10**9, "1000000000"),
        ("n", 129, "129"),
        ("top_k", -2, "-2"),
        ("top_p", -0.1, "-0.1"),
        ("top_p", 1.1, "1.1"),
        ("min_p", -0.1, "-0.1"),
        ("temperature", -1, "-1"),
        ("temperature", "hot", "'hot'"),
        ("repetition_penalty", 0, "0"),
        ("presence_penalty", 3, "3"),
        ("frequency_penalty", -3, "-3"),
        ("logprobs", 10**6, "1000000"),
        ("logprobs", -1, "-1"),
        ("logit_bias", {"-1": 1}, "'-1'"),
        ("logit_bias", {"1000": 1}, "1000"),
        ("logit_bias", {"5": 101}, "101"),
        ("logit_bias", {"five": 1}, "'five'"),
        ("logit_bias", [1], "[1]"),
        ("logit_bias", {str(token): 1 for token in range(2000)}, None),
        ("stop", [""], "''"),
        ("stop", ["x"] * 10_000, None),
        ("stop", "x" * 1000, None),
        ("stop", 5, "5"),
        ("stop_token_ids", [1000], "1000"),
        ("stop_token_ids", [-1], "-1"),
        ("stop_token_ids", list(range(100)), None),
        ("seed", -1, "-1"),
        ("seed", 2**63, str(2**63)),
        ("ignore_eos", 1, "1"),
        ("stream", "yes", "'yes'"),
        ("priority", 1001, "1001"),
        ("priority", 1.0, "1.0"),
        ("priority", True, "True"),
        ("deadline", 0, "0"),
        ("deadline", -1, "-1"),
        ("deadline", "soon", "'soon'"),
        ("deadline", 10**400, None),
        ("timeout", 10**400, None),
        ("cache_salt", "", "''"),
        ("cache_salt", 5, "5"),
        ("cache_salt", "x" * 1025, None),
        ("prompt", 5, "5"),
        ("prompt", [1, None], "null"),
        ("stop", [None], "null"),
        ("stop_token_ids", [None], "null"),
        ("logit_bias", {"5": None}, "null"),
        ("prompt", {"text": "a"}, None),
        ("prompt", [], "0"),
        ("prompt", "", "0"),
        ("prompt", [[]], "[]"),
        ("prompt", [[1]], "[1]"),
        ("prompt", ["a"], "'a'"),
        ("prompt", [-1], "-1"),
        ("prompt", [1000], "1000"),
        ("prompt", [2**31], str(2**31)),
        ("prompt", [2**64], str(2**64)),
        ("prompt", [1.5], "1.5"),
        ("prompt", [True], "True"),
    ],
)
def test_a_field_out_of_range_is_refused_by_its_name_with_limit_and_value(server, field, value, got):
    steps = server.stats()["steps"]
    error = refusal(post(server, json.dumps({"prompt": "a", "max_tokens": 5} | {field: value}).encode()))
    assert error["param"] == field
    assert error["limit"]
    assert error["message"].startswith(field)
    if got is not None:
        assert str(error["got"]) == got
    assert server.stats()["steps"] == steps  # the engine did nothing for it


def test_null_stands_for_the_default_of_every_field(server):
    properties = server.http.get("/openapi.json").json()["paths"]["/generate"]["post"]["requestBody"]
    fields = properties["content"]["application/json"]["schema"]["properties"]
    plain = server.generate(prompt="a", max_tokens=3).json()
    unset = {name: None for name in fields if name not in ("prompt", "max_tokens")}
    answer = server.generate(prompt="a", max_tokens=3, **unset)
    assert answer.status_code == 200 and answer.json().keys() == plain.keys()
    assert answer.json()["token_ids"] == plain["token_ids"]
    for name, field in fields.items():
        assert ({"type": "null"} in field["anyOf"]) is (name != "prompt")
    error = refusal(server.generate(prompt=None))
    assert error["param"] == "prompt" and error["message"] == "prompt is missing"


@pytest.mark.parametrize(("text", "got"), [("1e400", "inf"), ("-1e400", "-inf")])
def test_a_number_beyond_floats_is_refused(server, text, got):
    for field in ("max_tokens", "temperature", "timeout"):
        error = refusal(post(server, b'{"prompt": "a", "%s": %s}' % (field.encode(), text.encode())))
        assert error["param"] == field and error["got"] == got


def test_minus_zero_is_zero(server):
    assert post(server, b'{"prompt": "a", "max_tokens": 1, "temperature": -0.0}').status_code == 200


@pytest.mark.parametrize(
    ("name", "near"), [("max_token", "max_tokens"), ("tempreature", "temperature"), ("streaming", "stream")]
)
def test_an_unknown_field_is_refused_with_the_nearest_name(server, name, near):
    error = refusal(server.generate(prompt="a", **{name: 1}))
    assert error["param"] == name
    assert f"did you mean {near!r}?" in error["message"]


def test_an_unknown_field_may_be_near_to_nothing(server):
    assert "did you mean" not in refusal(server.generate(prompt="a", **{"q" * 5000: 1}))["message"]


def test_a_prompt_may_be_as_long_as_the_context_allows_and_no_longer(server):
    assert server.generate(prompt=[1] * 4095, max_tokens=1).status_code == 200
    error = refusal(server.generate(prompt=[1] * 4096, max_tokens=1))
    assert error["param"] == "prompt" and error["limit"] == "at most 4095 tokens" and error["got"] == 4096
    error = refusal(server.generate(prompt=[1] * 4095, max_tokens=2))
    assert error["param"] == "max_tokens" and "between 1 and 1" in error["limit"]


def test_a_bad_request_is_refused_before_a_stream_begins(server):
    refusal(server.generate(prompt=[5000], stream=True))


# -- everything else ---------------------------------------------------------------------------------------------------


def test_unknown_routes_and_methods_are_json_too(server):
    refusal(server.http.get("/v2/anything"), 404)
    for method in ("GET", "HEAD", "DELETE"):
        answer = server.http.request(method, "/generate")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    refusal(server.http.get("/generate"), 405)
    answer = server.http.delete("/ping")
    assert answer.headers["allow"] == "GET, HEAD, POST"
    refusal(answer, 405)


@pytest.mark.parametrize(
    "path", ["/health", "/health/live", "/ping", "/version", "/v1/models", "/metrics", "/stats", "/"]
)
def test_head_is_answered_as_get_without_the_body(server, path):
    """The next answer on the connection would begin with a body."""
    with server.connect() as connection:
        connection.sendall(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 2)
        connection.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answers = b"".join(iter(lambda: connection.recv(65536), b"")).split(b"HTTP/1.1 200 OK\r\n")
    assert len(answers) == 4 and answers[0] == b""
    got = server.http.get(path)
    for head in answers[1:3]:
        assert head.endswith(b"\r\n\r\n") and b"content-length: " in head
        assert b"content-type: " + got.headers["content-type"].encode() in head


def test_the_schema_describes_answers_that_are_not_the_rule(server):
    paths = server.http.get("/openapi.json").json()["paths"]
    assert "404" in paths["/v1/models/{name}"]["get"]["responses"]
    kind = server.http.get("/metrics").headers["content-type"]
    assert list(paths["/metrics"]["get"]["responses"]["200"]["content"]) == [kind]


def test_every_documented_status_is_json_and_no_page_loads_from_elsewhere(server):
    schema = server.http.get("/openapi.json").json()
    assert set(schema["paths"]["/generate"]["post"]["responses"]) >= {"200", "400", "413", "415", "503", "504"}
    for path in ("/docs", "/redoc"):
        refusal(server.http.get(path), 404)


def test_the_schema_describes_every_field_of_a_request(server):
    operation = server.http.get("/openapi.json").json()["paths"]["/generate"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    from gradus.engine.request import SamplingParams, SchedulingParams

    fields = {*SamplingParams.__slots__, *SchedulingParams.__slots__}
    assert set(schema["properties"]) == {*fields, "prompt", "stream"}
    assert all(field["description"] for field in schema["properties"].values())


def test_every_limit_is_shown(server):
    limits = server.stats()["limits"]
    assert limits["max_waiting"] == 64
    assert limits["max_body_bytes"] == 1 << 20
    assert limits["max_n"] == 64  # its max_waiting
    assert limits["receive_timeout"] == 2
    assert limits["key_max_samples"] is None and "key_tokens_per_minute" in limits


@pytest.mark.stress
def test_hundreds_of_half_sent_requests_keep_nobody_waiting(server):
    connections = [server.send(b"{", headers=["Content-Length: 1000"]) for _ in range(400)]
    assert server.generate(prompt="a", max_tokens=5).status_code == 200
    for connection in connections:
        assert read_answer(connection)[0] == 408
        connection.close()
