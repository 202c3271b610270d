"""Strict JSON: what is accepted, and that no input costs more than time in proportion to its size."""

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.server.failures import BodyError
from gradus.server.http.body import strict_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_whatever_json_can_say_is_read_as_json_reads_it(value, ascii_only):
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert strict_json(body) == json.loads(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_either_read_or_refused(body):
    try:
        strict_json(body)
    except BodyError as error:
        assert error.status == 400


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body must be JSON: Expecting value at line 1 column 1"),
        (b"{", "the body must be JSON"),
        (b"{} {}", "the body must be JSON: Extra data"),
        (b"{'a': 1}", "the body must be JSON"),
        (b'"\xff"', "the body must be UTF-8; byte 1 is not"),
        (b"\xef\xbb\xbf{}", "the body must be JSON: Unexpected UTF-8 BOM"),
        ('{"a": 1}'.encode("utf-16"), "the body must be UTF-8"),
        (b'"\x00"', "the body must be JSON: Invalid control character"),
        (b"NaN", "NaN is not JSON"),
        (b'{"a": [Infinity]}', "Infinity is not JSON"),
        (b"-Infinity", "-Infinity is not JSON"),
        (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' appears twice"),
        (b'{"x": {"b": 2, "b": 2}}', "the key 'b' appears twice"),
        (b'"\\ud800"', "half a surrogate pair"),
        (b'{"\\udfff": 1}', "half a surrogate pair"),
        (b"1" * 5000, "too many digits"),
    ],
)
def test_what_is_not_strictly_json_is_refused_in_words(body, message):
    with pytest.raises(BodyError) as caught:
        strict_json(body)
    assert message in str(caught.value)


def test_a_whole_surrogate_pair_is_one_character():
    assert strict_json(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


@pytest.mark.parametrize("opening, closing", [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_nesting_is_allowed_up_to_64_levels(opening, closing):
    levels = opening.count(b"[") + opening.count(b"{")
    times = 64 // levels
    strict_json(opening * times + b"1" + closing * times)
    with pytest.raises(BodyError, match="at most 64 levels"):
        strict_json(opening * (times + 1) + b"1" + closing * (times + 1))


def test_brackets_inside_strings_are_not_nesting():
    assert strict_json(json.dumps("[" * 500).encode()) == "[" * 500
    assert strict_json(json.dumps('"[\\' * 500).encode()) == '"[\\' * 500


MIB = 1 << 20


@pytest.mark.parametrize(
    ("unit", "most", "message"),
    [
        (b"[]", 32_767, "at most 32768 arrays and objects, got 32769"),
        (b"{}", 32_767, "at most 32768 arrays and objects, got 32769"),
        (b"1", 131_073, "at most 131072 values, got 131073"),
        (b'""', 65_536, "at most 65536 strings, got 65537"),
        (b'"\\""', 65_536, "at most 65536 strings, got 65537"),
        (b'"\\\\"', 65_536, "at most 65536 strings, got 65537"),
    ],
)
def test_parts_of_a_body_are_counted(unit, most, message):
    assert len(strict_json(b"[" + b",".join([unit] * most) + b"]")) == most
    with pytest.raises(BodyError, match=message):
        strict_json(b"[" + b",".join([unit] * (most + 1)) + b"]")


def test_parts_inside_strings_are_not_counted():
    text = '[]{},"\\\\"' * 100_000
    assert strict_json(json.dumps([text]).encode()) == [text]


def test_token_ids_of_a_whole_context_are_read():
    """The server allows one value per 8 bytes of the largest body, which has 16 for each token of the context."""
    ids = [31_999] * 1_000_000
    assert len(strict_json(json.dumps({"prompt": ids}).encode(), 16 * len(ids) // 8)["prompt"]) == len(ids)


def test_a_long_conversation_with_many_tools_is_read():
    message = {"role": "user", "content": [{"type": "text", "text": 'He said: "[1, 2]"'}]}
    schema = {"type": "object", "properties": {f"p{at}": {"type": "string", "enum": ["a", "b"]} for at in range(20)}}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}
    body = {"messages": [message] * 5000, "tools": [tool] * 200}
    assert strict_json(json.dumps(body).encode()) == body


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * MIB, id="brackets"),
        pytest.param(b"[" + b"[]," * (MIB // 3) + b"[]]", id="pairs"),
        pytest.param(b"[" + b"{}," * (MIB // 3) + b"{}]", id="objects"),
        pytest.param(b"[" + b",".join([b"[" * 60 + b"]" * 60] * (MIB // 121)) + b"]", id="deep lists"),
        pytest.param(b"[" + b",".join([b"[" * 60 + b"]" * 60] * 540) + b"]", id="most deep lists"),
        pytest.param(b"[" + b",".join([b'{"a":' * 60 + b"1" + b"}" * 60] * 540) + b"]", id="most deep objects"),
        pytest.param(b"{" + b",".join(b'"%x":0' % at for at in range(65_000)) + b"}", id="most keys"),
        pytest.param(b"[" * 70 + b'"' + b'\\"' * (MIB // 2), id="escaped quotes without an end"),
        pytest.param(b"[" * 70 + b'"' * MIB, id="quotes"),
        pytest.param(b'"' + b"\\u0041" * (MIB // 8) + b'"', id="escapes"),
        pytest.param(b"[" + b"1," * (MIB // 2) + b"1]", id="numbers"),
        pytest.param(b"[" + b",".join([b"9" * 4300] * 240) + b"]", id="long numbers"),
    ],
)
def test_a_mebibyte_made_to_be_slow_costs_little(body):
    """Measured: at most 0.025 s. Deep lists took 0.3 s without the limits."""
    assert min(seconds_to_read(body) for _ in range(5)) < 0.1


def seconds_to_read(body: bytes) -> float:
    start = time.thread_time()  # of this thread alone, however busy the machine is
    with contextlib.suppress(BodyError):
        strict_json(body)
    return time.thread_time() - start
