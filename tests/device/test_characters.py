"""Plain forms of characters that an encoding lacks, and streams that accept every character."""

import io
import re
from pathlib import Path

import pytest

from gradus.device import characters
from gradus.device.characters import HANDLER, PLAIN, accept_every_character, plain

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", "✓ 2 × 3 → 6 · é 日 😀"),
        ("latin-1", "ok 2 × 3 -> 6 · é \\u65e5 \\U0001f600"),
        ("ascii", "ok 2 x 3 -> 6 - \\xe9 \\u65e5 \\U0001f600"),
        (None, "✓ 2 × 3 → 6 · é 日 😀"),  # a stream that keeps text as it is
    ],
)
def test_only_what_the_encoding_lacks_is_replaced(encoding, shown):
    assert plain("✓ 2 × 3 → 6 · é 日 😀", encoding) == shown


def test_a_lone_surrogate_such_as_a_file_name_may_hold_is_escaped():
    assert plain("caf\udce9.txt", "utf-8") == "caf\\udce9.txt"


def test_every_plain_form_can_be_shown_anywhere():
    assert all(form.isascii() and form.isprintable() for form in PLAIN.values())


def test_every_mark_of_the_lessons_and_of_the_commands_has_a_plain_form():
    files = [*(ROOT / "phases").glob("p*/*.py"), *(ROOT / "src" / "gradus" / "cli").rglob("*.py")]
    files += [path for room in ("student", "views") for path in (ROOT / "src/gradus/course" / room).glob("*.py")]
    used = {char for file in files for char in re.findall(r"[^\x00-\x7f]", file.read_text(encoding="utf-8"))}
    assert len(used) > 10 and used <= set(PLAIN)


def test_decoding_is_left_to_fail_as_it_does():
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", HANDLER)


def test_streams_accept_every_character(monkeypatch):
    handlers = ("strict", "backslashreplace")
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=each) for each in handlers)
    for name, stream in (("stdout", out), ("stderr", err)):
        monkeypatch.setattr(characters.sys, name, stream)
    accept_every_character()
    print("✓ 日", file=out, flush=True)
    print("first · second", file=err, flush=True)
    assert (out.buffer.getvalue(), err.buffer.getvalue()) == (b"ok \\u65e5\n", b"first - second\n")


def test_a_stream_of_the_programs_own_is_left_alone(monkeypatch):
    own = io.StringIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(characters.sys, name, own)
    accept_every_character()
    own.write("✓")
    assert own.getvalue() == "✓"
