"""The first part of p00's lesson works: its commands in order, its numbers, and the sentence at its end."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gradus.cli import main
from gradus.course import sentence
from gradus.course.figures import forward as drawn
from gradus.loading import CATALOGUE, open_checkpoint
from gradus.models.config import parameter_count
from gradus.models.shapes import SHAPES
from phases.p00_baseline.exercise import FORWARD, SCHEDULER
from tests.course.conftest import ROOT, reference, run_forked

FOLDER = ROOT / "phases/p00_baseline"
LESSON = (FOLDER / "forward_pass.md").read_text(encoding="utf-8")
REFRESHER = (FOLDER / "refresher.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(?:gradus|python -m) .*$", re.sub(r" \\\n +", " ", LESSON), flags=re.MULTILINE)
SENTENCE = ["-m", "gradus.course.sentence"]
TINY = ["--model", "random:tiny-llama", "--tokens", "8"]


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """A program in a process of its own. (test_notebooks.py runs it in one that is not forked.)"""
    return run_forked([sys.executable, *arguments], cwd=folder, env=os.environ)


@pytest.fixture
def student(tmp_path, monkeypatch) -> Path:
    """An empty folder to work in, where checks run in forked processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", run_forked)
    return tmp_path


def solve(folder: Path, *exercises) -> None:
    for exercise in exercises:
        (folder / exercise.file_name).write_text(reference("p00", exercise.file_name), encoding="utf-8")


@pytest.mark.slow
def test_the_lessons_commands_lead_to_a_sentence(student, capsys):
    """Run the commands as a student would, with a tiny model in SmolLM2's place."""
    ran = []
    for line in COMMANDS:
        program, *arguments = shlex.split(line)
        if arguments[0] == "pull":
            assert arguments[1] in CATALOGUE
        elif program == "gradus":
            if arguments[0] == "check":
                solve(student / "exercises/p00", FORWARD[ran.count("check")])
            code, out = main(arguments), capsys.readouterr().out
            assert code == 0, out
            if arguments[0] in ("exercise", "check"):  # what to type next, alone on its line: the lesson's next command
                assert out.endswith(":\n  gradus check p00\n")
        else:
            done = python(student, *arguments, *TINY)
            assert done.returncode == 0, done.stderr
            assert ("the same tokens" in done.stdout) == ("--temperature" not in line)
        ran.append(arguments[0])
    assert ran == ["pull", "exercise", *["check"] * 5, "-m", "-m"]
    written = re.findall(r"^\*\*Write\*\* .* in `(\w+\.py)`, then:\n\n```bash\ngradus check p00$", LESSON, re.MULTILINE)
    assert written == [exercise.file_name for exercise in FORWARD]


@pytest.mark.slow
def test_the_students_own_code_writes(student):
    """The student's files replace ours, and a wrong one changes the text."""
    assert main(["exercise", "p00", "--to", "mine"]) == 0
    for exercise in (*FORWARD, SCHEDULER):
        if exercise.file_name != "sampling.py":
            (student / "mine" / exercise.file_name).unlink()
    done = python(student, *SENTENCE, "--impl", "mine", *TINY, "--temperature", "1")
    told = "keep_top and sample are still to be written, so there is no p00 of yours to run yet"
    assert (done.returncode, done.stderr) == (1, f"sentence: mine/sampling.py: {told}\n")
    wrong = reference("p00", "sampling.py").replace("argmax", "argmin")
    (student / "mine" / "sampling.py").write_text(wrong, encoding="utf-8")
    done = python(student, *SENTENCE, "--impl", "mine", *TINY)
    assert done.returncode == 1 and "OTHER TOKENS" in done.stdout


def test_the_texts_are_shown_token_by_token(monkeypatch):
    """A token takes a second on a busy machine, and a sentence a minute."""
    pieces: list[str] = []
    monkeypatch.setattr(sentence, "show", pieces.append)
    monkeypatch.setattr(sys, "argv", ["sentence", "a text", *TINY])
    assert sentence.main() == 0
    by_hand, by_engine = pieces[:10], pieces[10:]
    assert (by_hand[0], by_engine[0], len(by_engine)) == ("by hand    a text", "by p00     a text", 10)
    assert by_hand[1:8] == by_engine[1:8] and "8 tokens in" in by_hand[9] and "the same tokens" in by_engine[9]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--impl", "nowhere"], "sentence: nowhere: no such file or folder"),
        (["--model", "random:tiny-gpt2"], "sentence: the forward pass of p00 runs plain Llama"),
        ([*TINY, "--top-k", "321"], "sentence: --tokens must be 1 or more, --temperature 0 or more, --top-k 1 to 320"),
        ([*TINY, ""], "sentence: the prompt has no token"),
        (["--model", "nothing-like-this"], "sentence: no model named"),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_line(monkeypatch, arguments, says):
    """`sys.exit` prints the line and ends with 1, as `test_the_students_own_code_writes` sees of a process."""
    monkeypatch.setattr(sys, "argv", ["sentence", *arguments])
    with pytest.raises(SystemExit) as ended:
        sentence.main()
    assert str(ended.value).startswith(says) and "\n" not in str(ended.value)


@pytest.mark.slow
@pytest.mark.weights("smollm2-135m")
def test_smollm2_writes_the_lessons_sentence_by_hand_and_by_the_engine(tmp_path):
    (shown,) = re.findall(r"^```\n(by hand .*?)```", LESSON, flags=re.MULTILINE | re.DOTALL)
    command = next(line for line in COMMANDS if "sentence" in line)
    done = python(tmp_path, *SENTENCE, shlex.split(command)[3])
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(re.escape(shown).replace("…", ".+"), done.stdout), done.stdout


@pytest.mark.weights("smollm2-135m")
def test_the_refreshers_tokens_are_smollm2s():
    tokenizer = open_checkpoint("smollm2-135m").tokenizer
    for line in re.findall(r"^    (.*?) +→ +(.*)$", REFRESHER, flags=re.MULTILINE):
        pieces = re.findall(r'"(.*?)"', line[1])
        if pieces:
            found = [tokenizer.token_bytes(token).decode() for token in tokenizer.encode(line[0])]
            assert found == pieces
    ids = [int(number) for number in re.search(r"^ +((?:\d+ +){6}\d+)$", REFRESHER, flags=re.MULTILINE)[1].split()]
    assert ids == tokenizer.encode("The best thing about the sea is")


def test_the_table_of_letters_is_smollm2s_shape():
    rows = dict(re.findall(r"^\| (\w+) \| .* \| ([\d,]+) \|$", LESSON, flags=re.MULTILINE))
    c = SHAPES["smollm2-135m"]
    wanted = (c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.intermediate_size, c.vocab_size)
    assert tuple(int(value.replace(",", "")) for value in rows.values()) == wanted
    assert list(rows) == ["D", "Hq", "Hkv", "Dh", "F", "V"]
    assert f"{2 * c.num_kv_heads * c.head_dim * c.num_layers:,}" in LESSON
    assert f"(`theta` in the code) is {c.ropes[0].theta:,.0f}" in LESSON


def test_the_code_in_the_lesson_is_the_files():
    (code,) = re.findall(r"^```python\n(.*?)```$", LESSON, flags=re.MULTILINE | re.DOTALL)
    source = (FOLDER / "forward.py").read_text(encoding="utf-8")
    assert code.splitlines() and all(line in source for line in code.splitlines())


def test_the_weights_that_are_to_be_predicted_are_smollm2s():
    c = SHAPES["smollm2-135m"]
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    table, norms = c.vocab_size * c.hidden_size, c.hidden_size * (2 * c.num_layers + 1)
    around, mlp = c.hidden_size * 2 * (q + kv), c.hidden_size * 3 * c.intermediate_size
    assert table + c.num_layers * (around + mlp) + norms == parameter_count(c)
    assert f"{parameter_count(c) / 1e6:.1f} million" in LESSON
    assert all(f"{number:,}" in LESSON for number in (table, around, mlp, around + mlp))
    assert f"{100 * c.num_layers * (around + mlp) / 1e9:.1f} billion" in LESSON
    assert f"{table / parameter_count(c):.0%}".replace("%", " %") in LESSON and mlp == 3 * around


def test_the_triangles_rows_add_up_and_say_what_the_caption_says():
    weights = drawn.weights()
    for row, line in enumerate(weights):
        assert abs(sum(round(weight, 2) for weight in line) - 1) < 1e-6, "as they are printed"
        assert not any(line[row + 1 :]) and all(line[: row + 1])
    assert max(weights[2]) == weights[2][1] > 0.5 and drawn.WORDS[1:3] == ["cat", "sat"]


def test_the_clocks_begin_at_zero_and_run_ever_more_slowly():
    angles = drawn.turns()
    assert all(row[0] == 0 for row in angles)
    assert [row[1] for row in angles] == sorted((row[1] for row in angles), reverse=True) and angles[0][1] == 1
