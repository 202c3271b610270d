"""Strict JSON: what is accepted, and that no input costs more than time in proportion to its size."""

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.server.http.body import BodyError, strict_json

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


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * (1 << 20), id="brackets"),
        pytest.param(b"[" + b"[]," * (1 << 18) + b"[]]", id="pairs"),
        pytest.param(b"[" * 70 + b'"' + b'\\"' * (1 << 19), id="escaped quotes without an end"),
        pytest.param(b"[" * 70 + b'"' * (1 << 20), id="quotes"),
        pytest.param(b'"' + b"\\u0041" * (1 << 17) + b'"', id="escapes"),
        pytest.param(b"[" + b"1," * (1 << 19) + b"1]", id="numbers"),
    ],
)
def test_a_mebibyte_made_to_be_slow_costs_little(body):
    """Measured: under 0.2 s, on a machine with other work up to 3 s once. Anything quadratic takes minutes."""
    assert min(seconds_to_read(body) for _ in range(3)) < 1.5


def seconds_to_read(body: bytes) -> float:
    start = time.thread_time()  # of this thread alone, however busy the machine is
    with contextlib.suppress(BodyError):
        strict_json(body)
    return time.thread_time() - start
