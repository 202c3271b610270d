"""Compiling: what is compiled once, what is refused, and what a refusal says."""

import builtins
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.engine.plan import Admission
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.structured import Structured
from gradus.errors import RequestError
from gradus.loading.tokenizer import Tokenizer
from gradus.sampling.constraints import Constraints
from gradus.structured import Grammars, grammars
from gradus.structured.vocabulary import MAX_ENDS, row_words
from tests.structured.vocabularies import EOS, GRAMMARS, TOKENIZER, WIDTH, encode, legal, matcher


def refused(structured: Structured) -> str:
    with pytest.raises(RequestError) as caught:
        GRAMMARS.check(structured)
    text = str(caught.value)
    assert caught.value.param == "structured" and "\n" not in text and len(text) < 400
    return text


def accepts(structured: Structured, text: str) -> bool:
    return matcher(structured).accept([*encode(text), EOS[0]])


# -- kinds -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=5))
def test_a_choice_is_exactly_one_of_its_texts(choices):
    structured = Structured(choice=choices)
    for text in choices:
        assert accepts(structured, text)
        assert accepts(structured, text + "a") == (text + "a" in choices)
        assert accepts(structured, text[:-1]) == (text[:-1] in choices)


@pytest.mark.parametrize(
    ("regex", "texts", "others"),
    [
        ("a/b", ["a/b"], ["a"]),
        (r"a\/b", ["a/b"], ["a\\/b"]),
        ("a\nb", ["a\nb"], ["a", "a\nstart: x"]),
        ("^ab$", ["ab"], ["aab"]),
        ("a*", ["", "aaa"], ["b"]),
        ("(?i)cat", ["CAT", "cat"], ["dog"]),
        ("(?x) c a t # cats", ["cat"], ["c a t"]),
        ("[é日]+", ["日é"], ["e"]),
        (r"\d{2,3}", ["12", "123"], ["1", "1234"]),
        ('"#//', ['"#//'], ['"']),
    ],
)  # fmt: skip
def test_a_regular_expression_matches_the_whole_answer(regex, texts, others):
    for text in texts:
        assert accepts(Structured(regex=regex), text)
    for text in others:
        assert not accepts(Structured(regex=regex), text)


def test_any_json():
    for value in (1, "the cat", None, [], {"a": [True, {"b": -0.5}]}, "é\u2028😀"):
        for written in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=4)):
            assert accepts(Structured(json=True), written)
            assert accepts(Structured(json_schema=True), written)
            assert accepts(Structured(json_schema={}), written)
    for text in ("", "{", "[1,]", "tru", '"\n"', "01", "{1:2}", '"\\ud800"'):
        assert not accepts(Structured(json=True), text)


@pytest.mark.parametrize("structured", [Structured(json=True), Structured(json_schema={"type": "array"}),
                                        Structured(grammar='start: %json {"type": "array"}'),
                                        Structured(grammar="start: %json {}")])  # fmt: skip
def test_whitespace_is_bounded(structured):
    """A model that loves blanks would write them until its last token (vLLM #38696)."""
    assert accepts(structured, "[" + " " * 24 + "]")
    assert accepts(structured, "[\n" + " " * 24 + "1\n]")
    for blanks in (" " * 25, "\n\n", "\n" + " " * 25, " \n", "\t", "\r\n"):
        assert not accepts(structured, f"[{blanks}]")
    for outside in (" []", "[] ", "\n[]", "[]\n"):
        assert not accepts(structured, outside)


def test_compact_json_has_no_whitespace():
    structured = Structured(json_schema={"type": "array"}, whitespace="compact")
    assert accepts(structured, '[1,{"a":2}]')
    for text in ("[1, 2]", "[ ]", "[\n1]", '[{"a": 2}]'):
        assert not accepts(structured, text)


def test_a_schema_in_a_grammar_may_choose_its_own_whitespace():
    own = '{"type": "array", "x-guidance": {"whitespace_flexible": true}}'
    assert accepts(Structured(grammar=f"start: %json {own}"), "[" + " " * 99 + "]")


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("structured", "reason"),
    [
        (Structured(json_schema=False), "nothing satisfies the schema `false`"),
        (Structured(json_schema={"$ref": "#"}), "nothing satisfies it"),
        (Structured(json_schema={"type": "integer", "minimum": 5, "maximum": 3}), "minimum (5) is greater than"),
        (Structured(json_schema={"enum": []}), "Unsatisfiable"),
        (Structured(json_schema={"not": {}}), 'Unimplemented keys: ["not"]'),
        (Structured(json_schema={"x-guidance": {"lenient": True}}), 'the key "x-guidance"'),
        (Structured(grammar='start: %json {"x-guidance": {"lenient": true}, "not": {}}'), '"lenient"'),
        (Structured(grammar='start: %json {"x-guidance": {"coerce_one_of": true}}'), '"coerce_one_of"'),
        (Structured(grammar='start: %json {"type"'), "what follows %json is not JSON"),
        (Structured(grammar="start: x"), 'unknown name: "x"'),
        (Structured(grammar="x: /a/"), "no start rule"),
        (Structured(grammar="start: x\nx[max_tokens=3]: /a+/"), "max_tokens="),
        (Structured(grammar='start: x "b"\nx[capture, stop = "b"]: /a+/'), "stop="),
        (Structured(grammar="start: x\nx[temperature=0.5]: /a+/"), "temperature="),
        (Structured(grammar='%llguidance {"allow_invalid_utf8": true}\nstart: /a/'), "allow_invalid_utf8"),
        (Structured(grammar='%import "/etc/passwd"\nstart: /a/'), "Expected name"),
        (Structured(grammar="%import other.NAME\nstart: NAME"), "Unknown common regex"),
        (Structured(grammar="start: @other"), "unknown grammar"),
        (Structured(grammar="start: <[1]>"), "a token by its number"),
        (Structured(grammar="start: <[*]>"), "a token by its number"),
        (Structured(grammar="start: <|nope|>"), "names <|nope|>"),
        (Structured(grammar='start: "a" <|im_end|>'), "ends every answer"),
        (Structured(regex="(a"), "unclosed group"),
        (Structured(regex=r"\bfoo"), "lookarounds not supported"),
        (Structured(regex=r"(a)\1"), "backreferences are not supported"),
        (Structured(regex="a?" * 501), "repeats 501 parts"),
    ],
)  # fmt: skip
def test_what_can_not_be_kept_is_refused_with_the_reason(structured, reason):
    assert reason in refused(structured)


def test_a_refusal_shows_nothing_of_the_libraries_insides():
    for structured in (Structured(regex="(a{1000}){1000}"), Structured(grammar='start: "a"{1000000}')):
        text = refused(structured)
        assert not any(inside in text for inside in ("<state>", "verbose", ".rs", "panicked", "backtrace", "\x1b"))


def test_what_looks_like_an_attribute_inside_a_text_is_allowed():
    assert accepts(Structured(grammar='start: "max_tokens=3" // stop="x"\n# temperature=1'), "max_tokens=3")
    assert accepts(Structured(grammar="start: /stop=<[1]>/"), "stop=<1>")
    assert accepts(Structured(grammar="start: text\ntext[lazy]: /a+b/"), "ab")


def test_a_grammar_may_name_control_tokens_that_do_not_end_the_answer():
    made = matcher(Structured(grammar='start: "a" <|im_start|> "b"'))
    assert made.accept(encode("a")) and legal(made) == [1]
    assert made.accept([1, *encode("b")]) and legal(made) == sorted(EOS)


# -- the cache ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch) -> list[str]:
    """The texts that were compiled, in their order."""
    texts, original = [], grammars._compile

    def counted(structured, *others):
        texts.append(structured.text)
        return original(structured, *others)

    monkeypatch.setattr(grammars, "_compile", counted)
    return texts


def fresh() -> Grammars:
    return Grammars(TOKENIZER.to_json, WIDTH, EOS)


def test_equal_content_is_compiled_once(compiled):
    made = fresh()
    for _ in range(3):
        made.check(Structured(regex="ab"))
        made.matcher(Structured(regex="ab"))
    made.check(Structured(regex="ab", whitespace="compact"))
    made.check(Structured(choice=["ab"]))
    assert compiled == ["ab", "ab", '["ab"]']


def test_a_failure_is_kept_too(compiled):
    made = fresh()
    for _ in range(3):
        with pytest.raises(RequestError, match="unclosed"):
            made.check(Structured(regex="(a"))
    assert compiled == ["(a"]


def test_matchers_of_one_template_know_nothing_of_each_other():
    first, second = matcher(Structured(regex="ab+")), matcher(Structured(regex="ab+"))
    first.accept(encode("abb"))
    assert legal(second) == encode("a") and not second.accepting and first.accepting
    second.accept([-1])
    assert first.fault is None and matcher(Structured(regex="ab+")).fault is None


def test_the_least_recently_used_is_dropped_and_compiled_again(compiled, monkeypatch):
    monkeypatch.setattr(grammars, "MAX_TEMPLATES", 2)
    made = fresh()
    first = made.matcher(Structured(regex="a"))
    for text in ("b", "a", "c", "a", "b"):
        made.check(Structured(regex=text))
    assert compiled == ["a", "b", "c", "b"]
    assert first.accept(encode("a")) and legal(first) == sorted(EOS)


def test_the_cache_is_bounded_by_bytes(compiled, monkeypatch):
    monkeypatch.setattr(grammars, "MAX_TEMPLATE_BYTES", 100)
    made = fresh()
    for text in ("a" * 60, "b" * 60, "a" * 60, "c" * 200, "c" * 200):
        made.check(Structured(regex=text))
    assert [text[0] for text in compiled] == ["a", "b", "a", "c"]


def test_threads_share_one_compilation(monkeypatch):
    started, going, texts = threading.Event(), threading.Event(), []
    original = grammars._compile

    def slow(structured, *others):
        texts.append(structured.text)
        started.set()
        assert going.wait(30)
        return original(structured, *others)

    monkeypatch.setattr(grammars, "_compile", slow)
    made = fresh()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(made.matcher, Structured(regex="ab")) for _ in range(4)]
        assert started.wait(30)
        time.sleep(0.05)
        assert not any(future.done() for future in futures)
        going.set()
        assert all(future.result(30).accept(encode("ab")) for future in futures)
    assert texts == ["ab"]


def test_rows_are_kept_of_the_ends_used_most_recently_alone():
    """Clients choose their stop tokens: 10,000 sets of them must not stay for ever."""
    made, structured = fresh(), Structured(regex="a*")
    rows = made.vocabulary()._rows
    common = made.matcher(structured)._end_row
    for first, second in islice(combinations(range(3, 250), 2), 10_000):
        each = made.matcher(structured, (first, second))
        assert len(rows) <= MAX_ENDS
        assert made.matcher(structured)._end_row is common
    assert each.accept(encode("a")) and {first, second} <= set(legal(each))


class Panic(BaseException):
    """What pyo3 raises for a panic derives from BaseException too."""


@pytest.mark.parametrize("error", [TimeoutError("slow"), MemoryError(), Panic("assertion failed\n at lib.rs:3")])
def test_an_error_while_compiling_is_the_answer_to_all_that_wait(monkeypatch, error):
    """A TimeoutError must not be taken for a compilation that is still under way (vLLM #53130)."""

    def broken(*_arguments):
        time.sleep(0.05)
        raise error

    monkeypatch.setattr(grammars, "_compile", broken)
    made = fresh()
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(made.check, Structured(regex="ab")) for _ in range(3)]
        for future in futures:
            with pytest.raises(RequestError, match=f"can't be compiled: {type(error).__name__}") as caught:
                future.result(30)
            assert "\n" not in str(caught.value)


def test_an_interrupt_reaches_its_thread_and_leaves_nobody_waiting(monkeypatch):
    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(grammars, "_compile", interrupted)
    made = fresh()
    with pytest.raises(KeyboardInterrupt):
        made.check(Structured(regex="ab"))
    with pytest.raises(RequestError, match="interrupted"):
        made.check(Structured(regex="ab"))


# -- the tokenizer and the library -------------------------------------------------------------------------------------


def test_warming_builds_the_index_once(monkeypatch):
    built, original = [], grammars.Vocabulary.of
    monkeypatch.setattr(grammars.Vocabulary, "of", lambda *arguments: built.append(1) or original(*arguments))
    made = fresh()
    assert not built
    made.warm()
    made.check(Structured(regex="a"))
    made.warm()
    made.check(Structured(regex="b"))
    assert built == [1]


def test_a_tokenizer_that_can_not_be_used_refuses_requests_in_one_line():
    made = Grammars(lambda: '{"model": {"vocab": {}}, "added_tokens": []}', 8, (0,))
    made.warm()
    for _ in range(2):
        with pytest.raises(RequestError, match="structured: ") as caught:
            made.check(Structured(regex="a"))
        assert "\n" not in str(caught.value)


def test_without_an_index_an_answer_fails_alone_and_says_why():
    """Where its template was dropped and cannot be compiled again, a request is in the step already."""
    made = Grammars(lambda: '{"model": {"vocab": {}}, "added_tokens": []}', 300, (0,))
    constraints = Constraints(made)
    limits = ModelLimits(300, 64, (0,), structured=True)
    request = Request.create("r", [5], SamplingParams(structured=Structured(regex="a")), limits)
    constraints.admit([Admission(2, request, 0, (5, 6))])
    answers = constraints.of([2])
    rows = np.full((1, row_words(300)), -1, np.int32)
    constraints.fill(answers, rows)
    constraints.threads.wait()
    assert not rows.any() and constraints.matcher(2).legal([5]) == []
    (fault,) = constraints.accept(answers, {2}, np.array([-1])).values()
    assert fault.startswith("structured: ") and "\n" not in fault


def test_without_the_library_a_request_names_what_installs_it(monkeypatch):
    original = builtins.__import__

    def without(name, *arguments, **options):
        if name.split(".")[0] == "llguidance":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RequestError, match=r"llguidance.* is not installed: pip install 'llguidance>=1\.8,<2'"):
        fresh().check(Structured(regex="a"))


def test_the_library_is_loaded_by_the_first_request_alone():
    code = """
import sys
import gradus, gradus.structured
from gradus.structured import Grammars, MaskThreads
Grammars(lambda: "{}", 8, (0,)), MaskThreads()
assert "llguidance" not in sys.modules and "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_byte_is_a_token_of_a_tokenizer_of_bytes():
    made = Grammars(Tokenizer.of_bytes().to_json, 256).matcher(Structured(choice=["é\n"]))
    assert made.accept("é\n".encode()) and made.accepting and made.forced(1) == []
