"""`gradus generate`: text as it comes, JSON for programs, the options that reach the sampler."""

import json
import os
import signal
from pathlib import Path

import pytest

from gradus.cli import terminal

ROOT = Path(__file__).parents[2]
TINY = ["--model", "random:tiny-llama", "--dtype", "float32"]


def generated(done) -> dict:
    assert done.code == 0, done.err
    return json.loads(done.out)


def completions(gradus, *arguments: str) -> list[dict]:
    return generated(gradus("generate", "Hello", *TINY, "--json", *arguments))["completions"]


def test_text_goes_to_stdout_and_statistics_to_stderr(gradus):
    done = gradus("generate", "Hello", *TINY, "--max-tokens", "12", "--ignore-eos")
    expected = completions(gradus, "--max-tokens", "12", "--ignore-eos")[0]["text"]
    assert done.out == expected + "\n"
    assert "12 generated" in done.err
    assert "first token after" in done.err


def test_streamed_and_whole_text_are_the_same(gradus):
    arguments = ["generate", "Hello", *TINY, "--max-tokens", "12"]
    assert gradus(*arguments, "--stream").out == gradus(*arguments, "--no-stream").out


def test_json_says_what_ran_and_how_it_went(gradus):
    result = generated(
        gradus("generate", "Hello", *TINY, "--json", "--max-tokens", "3", "--ignore-eos", "--phase", "p00")
    )
    assert result["model"] == "random:tiny-llama"
    assert (result["engine"], result["phase"]) == ("p00", "p00")
    (completion,) = result["completions"]
    assert len(completion["token_ids"]) == 3
    assert completion["finish_reason"] == "length"
    assert completion["timings"]["ttft_s"] > 0
    assert completion["timings"]["decode_tokens_per_s"] > 0


def test_a_students_phase_runs_by_the_name_of_its_folder(gradus, tmp_path):
    file = tmp_path / "my_cache.py"
    file.write_text((ROOT / "phases/p01_kv_cache/contiguous.py").read_text())
    arguments = ["generate", "Hello", *TINY, "--json", "--max-tokens", "5", "--ignore-eos"]
    done = gradus(*arguments, "--impl", str(tmp_path))
    assert "your p01: my_cache.py" in done.err
    assert (generated(done)["engine"], generated(done)["phase"]) == ("your p01", "p01")
    ours = generated(gradus(*arguments, "--phase", "p01"))
    assert generated(done)["completions"][0]["token_ids"] == ours["completions"][0]["token_ids"]
    file.write_text(file.read_text().replace("return self.length if id == self.owner else 0", "return {}[id]"))
    done = gradus(*arguments, "--impl", str(tmp_path))
    assert done.code == 1 and "my_cache.py, line 25: KeyError: ('request-0', 0) (`gradus check` says" in done.err


def test_without_a_phase_the_final_engine_says_the_same(gradus):
    arguments = ["generate", "Hello", *TINY, "--json", "--max-tokens", "9", "--ignore-eos"]
    final, baseline = generated(gradus(*arguments)), generated(gradus(*arguments, "--phase", "p00"))
    assert (final["engine"], final["phase"]) == ("final", None)
    assert final["completions"][0]["token_ids"] == baseline["completions"][0]["token_ids"]
    switched = generated(gradus(*arguments, "--switch-off", "overlap", "--memory-fraction", "0.3"))
    assert switched["completions"][0]["token_ids"] == final["completions"][0]["token_ids"]


def test_json_lines_stream_the_same_tokens(gradus):
    drawn = ["--max-tokens", "6", "--n", "2", "--temperature", "1", "--seed", "3"]
    done = gradus("generate", "Hello", *TINY, "--json", "--stream", *drawn)
    lines = [json.loads(line) for line in done.out.splitlines()]
    whole = completions(gradus, *drawn)
    for index in range(2):
        pieces = [token for line in lines if line["index"] == index for token in line.get("token_ids", [])]
        assert pieces == whole[index]["token_ids"]
    assert sorted(line["index"] for line in lines if "completion" in line) == [0, 1]


def test_every_sample_is_shown_with_its_number(gradus):
    done = gradus("generate", "Hello", *TINY, "--max-tokens", "3", "--n", "2", "--temperature", "1", "--seed", "1")
    assert "[0] " in done.out and "[1] " in done.out


def test_the_prompt_can_come_from_standard_input(gradus):
    piped = gradus("generate", "-", *TINY, "--max-tokens", "5", stdin="Grüße".encode())
    assert piped.out == gradus("generate", "Grüße", *TINY, "--max-tokens", "5").out


def test_standard_input_must_be_utf8(gradus):
    done = gradus("generate", "-", *TINY, stdin=b"ab\xff")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "byte 2" in done.err


@pytest.mark.parametrize(
    "option",
    [["--temperature", "1"], ["--repetition-penalty", "5"], ["--presence-penalty", "2"], ["--frequency-penalty", "2"]],
)
def test_an_option_reaches_the_sampler(gradus, option):
    """Each changes what greedy decoding without it gives."""
    plain = completions(gradus, "--max-tokens", "16", "--ignore-eos", "--seed", "5")
    assert completions(gradus, "--max-tokens", "16", "--ignore-eos", "--seed", "5", *option)[0] != plain[0]
    tokens = [c["token_ids"] for c in completions(gradus, "--max-tokens", "16", "--ignore-eos", "--seed", "5", *option)]
    assert tokens != [c["token_ids"] for c in plain]


@pytest.mark.parametrize("narrow", [["--top-k", "1"], ["--top-p", "1e-9"], ["--min-p", "1"]])
def test_narrowing_to_one_token_is_greedy(gradus, narrow):
    greedy = completions(gradus, "--max-tokens", "8", "--ignore-eos")[0]["token_ids"]
    assert (
        completions(gradus, "--max-tokens", "8", "--ignore-eos", "--temperature", "1", *narrow)[0]["token_ids"]
        == greedy
    )


def test_a_stop_text_ends_the_answer_before_it(gradus):
    whole = completions(gradus, "--max-tokens", "40", "--ignore-eos")[0]["text"]
    stop = next(char for char in whole[3:] if char.isprintable() and char != "�")
    (stopped,) = completions(gradus, "--max-tokens", "40", "--ignore-eos", "--stop", stop)
    assert stopped["text"] == whole[: whole.index(stop)]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", stop)


def test_the_context_length_bounds_the_answer(gradus):
    done = gradus("generate", "Hello", *TINY, "--context-length", "16", "--max-tokens", "40")
    assert done.code == 2
    assert "context 16" in done.err


def test_ctrl_c_ends_it_with_130_and_without_a_traceback(gradus, monkeypatch):
    """The command runs in this process; tests/cli/test_chat.py has one that ends so in its own."""
    shown = []

    def interrupted(text):
        shown.append(text)
        if len(shown) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(terminal, "print_text", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        done = gradus("generate", "Hello", *TINY, "--max-tokens", "40", "--ignore-eos", "--stream")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (done.code, done.err.strip(), len(shown)) == (130, "", 3)


@pytest.mark.stress
def test_ctrl_c_ends_the_process_with_130_and_without_a_traceback(process):
    child = process("generate", "Hello", *TINY, "--max-tokens", "500", "--ignore-eos", "--phase", "p00")
    child.stdout.read(1)  # it is generating
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=30) == 130
    assert "Traceback" not in child.stderr.read()


@pytest.mark.weights("smollm2-135m")
def test_a_real_model_continues_a_story(gradus):
    done = gradus(
        "generate", "Once upon a time, in a small village by the sea,", "--max-tokens", "8", "--dtype", "float32"
    )
    assert done.out.startswith(" there was a wise old wizard named")


@pytest.mark.parametrize(("arguments", "expected"), [([], 1), (["--n", "3"], 3)])
def test_no_memory_is_taken_for_sequences_that_never_run(gradus, monkeypatch, arguments, expected):
    from gradus.text import llm

    class Asked(Exception):
        pass

    def asked(*_, max_sequences, **__):
        raise Asked(max_sequences)

    monkeypatch.setattr(llm, "LLM", asked)
    with pytest.raises(Asked, match=str(expected)):
        gradus("generate", "Hello", *arguments)


def test_answers_keep_to_what_the_options_say(gradus, tmp_path):
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"enum": ["red", "green"]}')
    grammar.write_text('start: "x" "y"+')
    for options, allowed in (
        (["--json-schema", str(schema)], {'"red"', '"green"'}),
        (["--choice", "yes", "--choice", "no"], {"yes", "no"}),
        (["--regex", "[ab]c"], {"ac", "bc"}),
        (["--any-json", "--max-tokens", "1"], {"{", "[", '"', "-", "t", "f", "n", *"0123456789"}),
    ):
        assert completions(gradus, "--temperature", "1", "--seed", "3", *options)[0]["text"] in allowed
    assert completions(gradus, "--max-tokens", "3", "--grammar", str(grammar))[0]["text"].startswith("xy")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--regex", "a("], "unclosed group"),
        (["--json-schema", "/no/such/file"], "/no/such/file: No such file"),
        (["--regex", "a", "--choice", "b"], "exactly one of"),
    ],
)
def test_a_constraint_that_cannot_be_kept_ends_with_2_in_one_line(gradus, options, says):
    done = gradus("generate", "Hello", *TINY, *options)
    assert done.code == 2 and says in done.err and done.err.count("\n") == 1
