"""A format with one model's vocabulary: what front ends use.

`Dialect` belongs to a model; `turn` makes a `Turn` of a request's tools and its choice, checked. A turn then gives what
the request needs: tools for the chat template, a grammar for the engine, and a stream that reads the answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from gradus.engine.request import SamplingParams
from gradus.engine.structured import MAX_GRAMMAR_BYTES, Structured
from gradus.errors import ConfigError, RequestError
from gradus.text import arrangement, conversation
from gradus.text.arrangement import Takes
from gradus.text.completion import Completion
from gradus.text.stops import NO_CONTROLS, Controls
from gradus.text.stream import Piece, TextStream, piece
from gradus.text.tools import history
from gradus.text.tools.answer import AnswerParser, AnswerStream, Thoughts
from gradus.text.tools.calls import MAX_CALLS
from gradus.text.tools.events import Answer, call_ids
from gradus.text.tools.formats import FORMATS, NAMES, Format, detect
from gradus.text.tools.grammar import answer_grammar, text_grammar
from gradus.text.tools.marks import Marks
from gradus.text.tools.reader import Mark
from gradus.text.tools.tool import Choice, Tool, read_choice, read_tools

if TYPE_CHECKING:
    from gradus.loading import Tokenizer

THOUGHTS = (Thoughts("<think>", "</think>"), Thoughts("[THINK]", "[/THINK]"))
MOST_TAIL = 4096  # tokens of a prompt's end that are searched for an opened thought


class Dialect:
    """How one model is shown tools, calls them, and marks its reasoning.

    name: a format of the table; None chooses by the chat template and the vocabulary. Raises ConfigError for any other
    name.
    """

    def __init__(self, tokenizer: "Tokenizer", name: str | None = None) -> None:
        showing = tokenizer.chat_templates.choose(has_tools=True)
        if name is not None and name not in NAMES:
            raise ConfigError(f"tool_format must be one of {', '.join(NAMES)}, got {name!r}")
        self.tokenizer = tokenizer
        template = None if showing is None else showing.source
        self.format: Format = (
            detect(template, lambda text: tokenizer.marker_id(text) is not None, tokenizer.model_name)
            if name is None
            else next(each for each in FORMATS if each.name == name)
        )
        self.thoughts = next((each for each in THOUGHTS if _thinks(each, tokenizer)), None)
        spelled = [*self.format.markers, *((self.thoughts.opening, self.thoughts.closing) if self.thoughts else ())]
        self.markers = {text: found for text in spelled if (found := tokenizer.marker_id(text)) is not None}

    @cached_property
    def marks(self) -> dict[int, Mark]:
        """The markers that are tokens, by id."""
        decode = self.tokenizer.token_bytes
        return {token: Mark(text, decode(token).decode("utf-8", "replace")) for text, token in self.markers.items()}

    @cached_property
    def controls(self) -> Controls:
        """The control tokens that stop strings may name."""
        return Controls.of(self.tokenizer)

    def turn(
        self, tools: Any = None, choice: Any = None, *, parallel: bool | None = None, envelope: bool = False
    ) -> "Turn":
        """Check a request's tools and its choice, in any of the clients' shapes.

        envelope: constrain form and names of calls, not their arguments, even where the model is free to call and no
        tool is strict. Raises RequestError, also for a choice that this model cannot make.
        """
        declared = read_tools(tools)
        chosen = read_choice(choice, declared, parallel=parallel)
        if chosen.mode == "auto" and not self.format.free:
            raise RequestError(
                'tool_choice must be "required", "none" or a function\'s name: this model was not taught to call '
                "tools, and does it only where a grammar makes it",
                param="tool_choice",
                limit='"required", "none" or a function\'s name',
                got="auto",
            )
        return Turn(self, declared, chosen, envelope)

    @cached_property
    def takes(self) -> Takes:
        """The conversations that the chat template takes without tools."""
        return arrangement.takes(self.tokenizer.render_chat)

    @cached_property
    def takes_with_tools(self) -> Takes:
        """The conversations that the model's template takes with tools, which some show in the first user's turn."""
        return arrangement.takes(partial(self.tokenizer.render_chat, tools=[Tool("example").shown()]))

    def shows_tools(self, has_tools: bool = True) -> bool:
        """Whether the template of a conversation with or without tools knows of tools."""
        template = self.tokenizer.chat_templates.choose(has_tools)
        return template is not None and "tools" in template.variables

    def messages(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool] = ()) -> list[dict[str, Any]]:
        """Prepare a conversation for the chat template, as gradus.text.conversation describes. tools: what the model is
        shown. Raises RequestError naming the message and the field."""
        found = history.normalized(conversation.read(messages))
        if not self.shows_tools(bool(tools)):
            found = history.as_plain_text(found, self.format, tools)
        return arrangement.arranged(found, self.takes_with_tools if tools else self.takes)

    def thoughts_after(self, prompt: Sequence[int]) -> Thoughts | None:
        """Find out whether a prompt leaves reasoning open: the answer begins inside it then.

        Only the assistant's own turn counts: what is behind the last control token. A user may write anything before.
        """
        if self.thoughts is None:
            return None
        ends = {self.markers.get(self.thoughts.opening): True, self.markers.get(self.thoughts.closing): False}
        tail: list[int] = []
        for token in reversed(prompt[-MOST_TAIL:]):
            if token in ends:
                return replace(self.thoughts, inside=ends[token])
            if token in self.tokenizer.special_token_ids:
                break
            tail.append(token)
        if len(self.markers.keys() & {self.thoughts.opening, self.thoughts.closing}) == 2:
            return self.thoughts
        text = self.tokenizer.decode(reversed(tail))
        return replace(self.thoughts, inside=text.rfind(self.thoughts.opening) > text.rfind(self.thoughts.closing))


def _thinks(thoughts: Thoughts, tokenizer: "Tokenizer") -> bool:
    by_token = tokenizer.marker_id(thoughts.opening) is not None and tokenizer.marker_id(thoughts.closing) is not None
    return by_token or any(thoughts.closing in template.source for template in tokenizer.chat_templates.used)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request's tools and choice, for one model."""

    dialect: Dialect
    tools: tuple[Tool, ...]
    choice: Choice
    envelope: bool = False

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that the answer may call."""
        if self.choice.mode == "named":
            return tuple(tool for tool in self.tools if tool.name == self.choice.name)
        return () if self.choice.mode == "none" else self.tools

    @property
    def shown(self) -> tuple[Tool, ...]:
        """The tools that the prompt shows: all of them, so that prompts of one conversation share their beginning."""
        return () if self.choice.mode == "none" else self.tools

    def grammar(self, prompt: Sequence[int], text: Structured | None = None) -> str | None:
        """Write the grammar of the answer; None if it is free. text: what an answer without calls must be.

        Raises RequestError for tools whose grammar is too large.
        """
        thoughts = self.dialect.thoughts_after(prompt)
        if not self.callable:
            if text is None or text.kind == "grammar" or thoughts is None:
                return None
            return text_grammar(text, self.dialect.markers, thoughts)
        if not (text or self.forced or self.envelope or any(tool.strict for tool in self.callable)):
            return None
        grammar = answer_grammar(
            self.dialect.format.layout,
            self.callable,
            self.dialect.markers,
            forced=self.forced,
            several=self.choice.parallel,
            exact=lambda tool: self.forced or tool.strict,
            thoughts=thoughts,
            text=text,
        )
        if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
            raise RequestError(
                f"tools must have a grammar of at most {MAX_GRAMMAR_BYTES} bytes, got {len(grammar.encode())}: declare "
                'fewer tools, or none of them strict with tool_choice "auto"',
                param="tools",
                limit=f"a grammar of at most {MAX_GRAMMAR_BYTES} bytes",
                got=len(grammar.encode()),
            )
        return grammar

    @property
    def forced(self) -> bool:
        """Whether the answer is calls and nothing else."""
        return self.choice.mode in ("required", "named")

    def constrain(self, params: SamplingParams, prompt: Sequence[int]) -> SamplingParams:
        """Add the grammar to a request's parameters; all others stay.

        Parameters that constrain the answer constrain its text: reasoning stays free, and an answer may be calls
        instead. Raises RequestError where both cannot be.
        """
        text = params.structured
        self._check_both(text, prompt)
        grammar = self.grammar(prompt, text)
        if grammar is None:
            return params
        whitespace = text.whitespace if text is not None else "bounded"
        return replace(params, structured=Structured(grammar=grammar, whitespace=whitespace))

    def _check_both(self, text: Structured | None, prompt: Sequence[int]) -> None:
        """Refuse a constraint that cannot stand beside calls, or behind reasoning."""
        if text is None or self.forced:
            return
        whole, by_token = text.kind == "grammar", self.dialect.format.layout.trigger in self.dialect.markers
        if self.callable and (whole or not by_token):
            why = "a grammar constrains the whole answer" if by_token else "this model's calls may look like its text"
            raise RequestError(
                f'structured: {why}; give tools or the constraint, or tool_choice "none" or "required"',
                param="structured",
                limit="none with tools that the model may call",
                got=text.kind,
            )
        thoughts = self.dialect.thoughts_after(prompt) if whole else None
        if thoughts is not None and thoughts.inside:
            raise RequestError(
                "structured: a grammar constrains the whole answer, but this prompt begins reasoning; switch that off",
                param="structured",
                limit="no grammar while the model reasons",
                got=text.kind,
            )

    def stream(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        *,
        seed: str | None = None,
        token_bytes: Callable[[int], Piece] | None = None,
    ) -> AnswerStream:
        """Make the reader of one sample's answer. seed: of the calls' ids. token_bytes: of the tokenizer, if cached."""
        params = params or SamplingParams()
        decode = token_bytes or (lambda token: piece(self.dialect.tokenizer.token_bytes(token)))
        parser = AnswerParser(
            self.dialect.format.triggers,
            {tool.name: tool for tool in self.callable},
            call_ids(seed),
            self.dialect.thoughts_after(prompt),
            self.dialect.markers,
            MAX_CALLS if self.choice.parallel else 1,
        )
        controls = self.dialect.controls if params.stop else NO_CONTROLS
        text = TextStream(decode, params.stop, params.min_tokens, controls)
        return AnswerStream(Marks(text, self.dialect.marks), parser)

    def answer(
        self,
        completion: Completion,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        *,
        seed: str | None = None,
    ) -> Answer:
        """Read a whole answer, by the machine that reads streamed ones."""
        stream = self.stream(prompt, params, seed=seed)
        stopped = isinstance(completion.stop_reason, int)
        events = stream.push(completion.token_ids[:-1] if stopped else completion.token_ids)
        return Answer.of([*events, *stream.finish()], completion.finish_reason)
