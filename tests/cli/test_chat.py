"""`gradus chat`: a conversation that remembers, forgets on request, and survives Ctrl-C."""

import contextlib
import io
import os
import pty
import select
import signal
import sys
import time

import pytest

from gradus import LLM, SamplingParams
from gradus.cli.commands.chat import Conversation, _answer, _lines
from gradus.errors import RequestError
from tests.cli.conftest import hears_ctrl_c

TINY = ["--model", "random:tiny-llama", "--dtype", "float32"]
CHAT = ["-m", "gradus", "chat", *TINY]


@pytest.fixture(scope="module")
def llm():
    return LLM("random:tiny-llama", dtype="float32")


@pytest.fixture
def conversation(llm):
    return Conversation(llm, SamplingParams(max_tokens=4, ignore_eos=True), system="Be brief.")


def roles(conversation) -> str:
    return " ".join(message["role"][0] for message in conversation.messages)


def test_it_remembers_both_sides(conversation):
    first = conversation.say("Hello")
    conversation.say("And?")
    assert roles(conversation) == "s u a u a"
    assert conversation.messages[2]["content"] == first.text


def test_what_came_before_is_part_of_the_prompt(conversation):
    first, second = conversation.say("Hello"), conversation.say("Hello")
    assert second.prompt_tokens > first.prompt_tokens + len(first.token_ids)


def test_reset_keeps_only_the_system_message(conversation):
    conversation.say("Hello")
    conversation.reset()
    assert roles(conversation) == "s"


def test_a_message_that_does_not_fit_is_not_remembered(conversation):
    with pytest.raises(RequestError):
        conversation.say("long " * 1000)
    assert roles(conversation) == "s"
    assert conversation.say("short").finish_reason == "length"


def test_near_the_end_of_the_context_answers_get_shorter_and_say_so(llm, capsys):
    conversation = Conversation(llm, SamplingParams(max_tokens=300, ignore_eos=True))
    _answer(conversation, "x" * 300, interactive=True)
    assert "the context is full: /reset makes room" in capsys.readouterr().err and roles(conversation) == "u a"
    _answer(conversation, "y" * 300, interactive=True)  # nothing is left
    assert "(/reset makes room)" in capsys.readouterr().err and roles(conversation) == "u a"
    conversation.reset()
    _answer(conversation, "short", interactive=True)
    assert "context is full" not in capsys.readouterr().err


def test_more_tokens_than_a_context_has_are_a_mistake(llm):
    conversation = Conversation(llm, SamplingParams(max_tokens=10_000))
    with pytest.raises(RequestError, match="max_tokens must be between 1 and"):
        conversation.say("Hello")


def test_ctrl_c_cancels_the_answer_and_keeps_what_was_said(llm, monkeypatch):
    conversation = Conversation(llm, SamplingParams(max_tokens=300, ignore_eos=True))
    step, steps = llm.step, iter(range(1000))

    def interrupted_step():
        if next(steps) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return step()

    monkeypatch.setattr(llm, "step", interrupted_step)
    before = signal.getsignal(signal.SIGINT)
    completion = conversation.say("Hello")
    assert completion.finish_reason == "cancelled"
    assert 5 <= len(completion.token_ids) < 20
    assert conversation.messages[-1] == {"role": "assistant", "content": completion.text}
    assert llm.step() == [] and not llm.has_work  # the step under way yields no tokens
    assert signal.getsignal(signal.SIGINT) is before


def test_a_piped_message_ends_at_a_newline_alone(monkeypatch):
    """Other characters that some programs treat as line ends are part of the message."""
    said = "one\u2028still one\x85and still\r\ntwo\x0c\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
    assert [line.strip() for line in _lines(interactive=False)] == ["one\u2028still one\x85and still", "two", ""]


def test_lines_can_be_piped_in(gradus):
    done = gradus("chat", *TINY, "--max-tokens", "4", stdin=b"Hello\n\n/reset\nHello\n/quit\nnever said\n")
    assert done.code == 0
    assert "starts anew" in done.err
    first, _, second = done.out.rstrip("\n").partition("\n")
    assert first == second, "after /reset the same question has the same answer"


def test_a_script_fails_on_a_message_that_does_not_fit(gradus):
    done = gradus("chat", *TINY, stdin=b"long " * 1000)
    assert done.code == 2
    assert "prompt must have at most" in done.err


def test_an_unknown_command_is_not_sent_to_the_model(gradus):
    done = gradus("chat", *TINY, stdin=b"/frob\n")
    assert (done.code, done.out) == (0, "")
    assert "/frob" in done.err and "/reset" in done.err


# -- on a terminal -----------------------------------------------------------------------------------------------------


class Terminal:
    """A program of Python's on a terminal of its own: type to it, wait until it shows something."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            hears_ctrl_c()
            plain = os.environ | {"TERM": "dumb"}  # nothing is shown but text
            os.execve(sys.executable, [sys.executable, *arguments], plain)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Read on until `text` has appeared since the last wait."""
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            ready, _, _ = select.select([self.fd], [], [], deadline - time.monotonic())
            assert ready, f"{text!r} did not appear, only {self.shown!r}"
            self.shown += os.read(self.fd, 4096).decode(errors="replace")
        self.shown = self.shown.split(text, 1)[1]

    def wait_for_anything(self, seconds: float = 60) -> None:
        """Read on until something has appeared since the last wait."""
        if not self.shown:
            assert select.select([self.fd], [], [], seconds)[0], "nothing appeared"

    def exit_code(self, seconds: float = 60) -> int:
        """Wait for the end."""
        for _ in range(int(20 * seconds)):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        raise AssertionError(f"still running; it showed {self.shown!r}")


@pytest.fixture
def terminal():
    opened: list[Terminal] = []

    def open_terminal(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield open_terminal
    for one in opened:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
        os.close(one.fd)


def test_on_a_terminal_it_prompts_explains_itself_and_forgives(terminal, monkeypatch):
    """A terminal of plain ASCII, which is refused what it lacks where that is typed."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    chat = terminal(*CHAT, "--max-tokens", "4", "--context-length", "64", "--phase", "p00")
    chat.wait_for("/reset")
    chat.wait_for("> ")
    chat.type("Hello\r")
    chat.wait_for("generated")
    chat.wait_for("> ")
    chat.type("far too long " * 10 + "\r")
    chat.wait_for("(/reset makes room)")
    chat.wait_for("> ")
    chat.type("café au lait\r")
    chat.wait_for("not valid Unicode")
    chat.wait_for("> ")
    chat.type("\x04")  # Ctrl-D
    assert chat.exit_code() == 0


def test_ctrl_c_cancels_an_answer_and_at_the_prompt_leaves(terminal):
    chat = terminal(*CHAT, "--max-tokens", "450", "--phase", "p00")  # greedy, and this answer has no early end
    chat.wait_for("> ")
    chat.type("Hello\r")
    chat.wait_for("Hello\r\n")
    chat.wait_for_anything()  # of the answer
    chat.type("\x03")
    chat.wait_for("cancelled")
    chat.wait_for("> ")
    chat.type("\x03")
    assert chat.exit_code() == 130


UNHEARD = """
import pathlib, signal, sys, threading, time
from gradus.cli.commands.chat import _lines

def interrupt():
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

threading.Thread(target=interrupt).start()
next(_lines(interactive=True))
"""


def test_ctrl_c_leaves_the_prompt_though_nothing_ends_its_wait_for_a_key(terminal, tmp_path):
    """Python has noted the signal but the prompt goes on waiting: as after Ctrl-C an instant before the wait begins.

    Here it is another thread that is sent the signal, and so disturbed by it.
    """
    shown = tmp_path / "shown"
    prompt = terminal("-c", UNHEARD, str(shown))
    prompt.wait_for("> ")
    shown.touch()
    prompt.wait_for("KeyboardInterrupt")


def test_ctrl_c_before_the_first_token_cancels_the_answer(llm, monkeypatch):
    conversation = Conversation(llm, SamplingParams(max_tokens=300, ignore_eos=True))
    chat_prompt = llm.chat_prompt

    def interrupted_prompt(messages):
        os.kill(os.getpid(), signal.SIGINT)
        return chat_prompt(messages)

    monkeypatch.setattr(llm, "chat_prompt", interrupted_prompt)
    completion = conversation.say("Hello")
    assert (completion.finish_reason, completion.token_ids) == ("cancelled", ())
