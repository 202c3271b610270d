"""`gradus chat`: a conversation, typed or piped in line by line."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Option

from gradus.cli import options, terminal
from gradus.cli.engine import open_llm
from gradus.engine.request import SamplingParams
from gradus.errors import RequestError
from gradus.text.completion import Completion

if TYPE_CHECKING:
    from gradus.text.llm import LLM

DEFAULT = SamplingParams()
COMMANDS = "/reset forgets the conversation, /quit leaves, Ctrl-C cancels the current answer"
LOOK_S = 0.5  # seconds between checks for a Ctrl-C that came too early


@options.for_one_prompt
def chat(
    system: Annotated[str | None, Option(help="A system message that precedes the conversation.")] = None,
    max_tokens: options.MaxTokens = DEFAULT.max_tokens,
    temperature: options.Temperature = DEFAULT.temperature,
    top_k: options.TopK = DEFAULT.top_k,
    top_p: options.TopP = DEFAULT.top_p,
    min_p: options.MinP = DEFAULT.min_p,
    repetition_penalty: options.RepetitionPenalty = DEFAULT.repetition_penalty,
    seed: options.Seed = None,
    json_schema: options.JsonSchema = None,
    any_json: options.AnyJson = False,
    regex: options.Regex = None,
    grammar: options.Grammar = None,
    choice: options.Choice = None,
    **settings: Any,
) -> int:
    """Talk to a model. It remembers the conversation until /reset; /quit or Ctrl-D leaves, Ctrl-C cancels an answer.

    Examples:

      gradus chat
      gradus chat --system "Answer in one sentence." --temperature 0.7
      echo "What is a KV cache?" | gradus chat
    """
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        structured=options.structured(json_schema, any_json, regex, grammar, choice),
    )
    llm = open_llm(settings)
    conversation = Conversation(llm, params, system)
    interactive = sys.stdin.isatty()
    if interactive:
        terminal.print_note(f"{llm.checkpoint.name} on {llm.phase or 'the final engine'}. {COMMANDS}.")
    for line in _lines(interactive):
        match line.strip():
            case "":
                continue
            case "/quit":
                return 0
            case "/reset":
                conversation.reset()
                terminal.print_note("the conversation starts anew")
            case command if command.startswith("/"):
                terminal.print_note(f"no such command: {command}. {COMMANDS}.")
            case _:
                _answer(conversation, line, interactive)
    return 0


def _lines(interactive: bool) -> Iterator[str]:
    """Read the user's messages, line by line, until end of file."""
    if not interactive:
        yield from terminal.standard_input().split("\n")  # a message may hold the other characters that end lines
        return
    import readline  # noqa: F401  # lets input() edit its line and recall earlier ones

    # Bytes that are invalid in the terminal's encoding become lone surrogates, which a request refuses in one line.
    cast(TextIOWrapper, sys.stdin).reconfigure(errors="surrogateescape")
    signal.signal(signal.SIGALRM, lambda *_: None)  # permanently: without a handler a late alarm would end the process
    while True:
        try:
            with _early_interruptions():
                line = input("\n> ")
        except EOFError:
            return
        yield line


@contextmanager
def _early_interruptions() -> Iterator[None]:
    """Let Ctrl-C leave the prompt even if it comes after the prompt is shown and before it waits for a key.

    A signal ends that wait only if it comes during the wait. Python records an earlier one, but acts on it only when a
    key or another signal interrupts the wait. So an alarm interrupts it twice per second.
    """
    signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(conversation: "Conversation", text: str, interactive: bool) -> None:
    """Show the answer as it arrives. A mistake ends a script; at a terminal it is shown, and the conversation
    continues."""
    try:
        completion = conversation.say(text.strip())
    except RequestError as mistake:
        if not interactive:
            raise
        terminal.print_mistake(f"{mistake} (/reset makes room)" if mistake.param == "prompt" else str(mistake))
        return
    terminal.print_text("\n")
    if conversation.is_full(completion):
        terminal.print_note("the context is full: /reset makes room")
    if interactive or completion.finish_reason == "error":
        terminal.print_note(terminal.statistics([completion]))


class Conversation:
    """The messages so far, without messages that could not be answered."""

    def __init__(self, llm: "LLM", params: SamplingParams, system: str | None = None) -> None:
        self.llm = llm
        self.params = params
        self._opening = [{"role": "system", "content": system}] if system is not None else []
        self.reset()

    def reset(self) -> None:
        self.messages = list(self._opening)

    def say(self, text: str) -> Completion:
        """Answer `text`, showing the answer as it arrives. Ctrl-C ends it early; the text until then is kept."""
        asked = [*self.messages, {"role": "user", "content": text}]
        with _interruptions() as interrupted:
            prompt = self.llm.chat_prompt(asked)
            request = self.llm.submit(prompt, self._fitting(len(prompt)))
            completion = None
            while completion is None:
                deltas = self.llm.cancel(request) if interrupted.is_set() else self.llm.step()
                for delta in deltas:
                    terminal.print_text(delta.text)
                    completion = delta.completion
        self.messages = [*asked, {"role": "assistant", "content": completion.text}]
        return completion

    def _fitting(self, prompt_tokens: int) -> SamplingParams:
        """Shorten the requested answer to the room left in the context."""
        context, most = self.llm.limits.context_length, self.params.max_tokens
        room = context - prompt_tokens
        if most is not None and 1 <= room < most < context:  # asking for a whole context is a mistake, so not shortened
            return replace(self.params, max_tokens=room)
        return self.params

    def is_full(self, answer: Completion) -> bool:
        """Whether the context ended this answer."""
        used = answer.prompt_tokens + len(answer.token_ids)
        return answer.finish_reason == "length" and used >= self.llm.limits.context_length


@contextmanager
def _interruptions() -> Iterator[threading.Event]:
    """Let the first Ctrl-C set an event without interrupting the engine's step; the second one interrupts at once."""
    asked = threading.Event()

    def ask(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
