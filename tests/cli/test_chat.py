"""`gradus chat`: a conversation that remembers, forgets when told, and survives Ctrl-C."""

import os
import signal

import pytest

from gradus import LLM, SamplingParams
from gradus.cli.chat import Conversation
from gradus.errors import RequestError

TINY = ["--model", "random:tiny-llama", "--dtype", "float32"]


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
    assert not llm.has_work
    assert signal.getsignal(signal.SIGINT) is before


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
