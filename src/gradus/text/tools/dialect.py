"""A format with one model's vocabulary: what front ends use.

`Dialect` belongs to a model; `turn` makes a `Turn` of a request's tools and its choice, checked. A turn then gives what
the request needs: tools for the chat template, a grammar for the engine, and a stream that reads the answer.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

from gradus.engine.request import SamplingParams
from gradus.engine.structured import MAX_GRAMMAR_BYTES, Lazy, Structured
from gradus.errors import ConfigError, RequestError
from gradus.loading.chat import EFFORTS
from gradus.text import arrangement, conversation
from gradus.text.arrangement import Takes
from gradus.text.completion import Completion
from gradus.text.stops import NO_CONTROLS, Controls
from gradus.text.stream import Piece, TextStream, piece
from gradus.text.tools import history
from gradus.text.tools.answer import AnswerParser, AnswerStream, Ending, Thoughts, Trigger
from gradus.text.tools.calls import MAX_CALLS, MOST_CALLS
from gradus.text.tools.channels import ANALYSIS, ASSISTANT, MESSAGE, START, ChannelParser
from gradus.text.tools.events import Answer, call_ids
from gradus.text.tools.formats import FORMATS, NAMES, Format, detect
from gradus.text.tools.grammar import answer_grammar, lazy_grammar, text_grammar
from gradus.text.tools.layout import Layout
from gradus.text.tools.marks import Marks
from gradus.text.tools.reader import Mark
from gradus.text.tools.reader import Piece as Reads
from gradus.text.tools.tool import Choice, Tool, read_choice, read_tools

if TYPE_CHECKING:
    from gradus.loading import Tokenizer

THOUGHTS = (
    Thoughts("<think>", "</think>"),
    Thoughts("[THINK]", "[/THINK]"),
    Thoughts("<|channel>", "<channel|>", label="thought"),  # Gemma 4
    Thoughts("Here is my thought process:", "Here is my response:"),  # Granite 3.2
)
PATIENCE = 1.0  # seconds to find out which of a request's schemas can be kept
MOST_KEPT = 1024  # schemas, each known to be kept or not
MOST_TAIL = 4096  # tokens of a prompt's end that are searched for an opened thought


class Dialect:
    """How one model is shown tools, calls them, and marks its reasoning.

    name: a format of the table; None chooses by the chat template and the vocabulary. Raises ConfigError for any other
    name. max_calls: in one answer, unless a turn has its own limit. compiles: compiles a constraint, or raises
    RequestError. If it is given, the calls of a model that is free to call obey the schemas of all tools; otherwise
    those of strict tools.
    """

    def __init__(
        self,
        tokenizer: "Tokenizer",
        name: str | None = None,
        *,
        max_calls: int = MAX_CALLS,
        compiles: Callable[[Structured], None] | None = None,
    ) -> None:
        showing = tokenizer.chat_templates.choose(has_tools=True)
        if name is not None and name not in NAMES:
            raise ConfigError(f"tool_format must be one of {', '.join(NAMES)}, got {name!r}")
        self.tokenizer, self.max_calls, self.compiles = tokenizer, max_calls, compiles
        self.kept: dict[str, bool] = {}  # whether a schema, as JSON, can be kept
        template = None if showing is None else showing.source
        self.format: Format = (
            detect(template, lambda text: tokenizer.marker_id(text) is not None, tokenizer.model_name)
            if name is None
            else next(each for each in FORMATS if each.name == name)
        )
        known = next((each for each in THOUGHTS if _thinks(each, tokenizer)), None)
        self.thoughts = ANALYSIS if self.format.layout.channels else known
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

    @cached_property
    def opens_call(self) -> Callable[[int], bool]:
        """Whether a call may begin with a token: it is a trigger, or has the first character of one."""
        channels = self.format.layout.channels
        triggers = {MESSAGE} if channels else {trigger.marker for trigger in self.format.triggers}
        tokens = {self.markers[trigger] for trigger in triggers & self.markers.keys()}
        firsts = {trigger[0].encode() for trigger in triggers - self.markers.keys()}

        def opens(token: int) -> bool:
            return token in tokens or any(first in self.tokenizer.token_bytes(token) for first in firsts)

        return cache(opens)

    def turn(
        self,
        tools: Any = None,
        choice: Any = None,
        *,
        parallel: bool | None = None,
        envelope: bool = False,
        max_calls: int | None = None,
    ) -> "Turn":
        """Check a request's tools and its choice, in any of the clients' shapes.

        max_calls: the last of them ends the answer.

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
        most = self.max_calls if max_calls is None else max_calls
        if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MOST_CALLS:
            raise RequestError.of("max_calls", f"a whole number between 1 and {MOST_CALLS}", most)
        return Turn(self, declared, chosen, envelope, most if chosen.parallel else 1)

    @cached_property
    def takes(self) -> Takes:
        """The conversations that the chat template takes without tools."""
        return arrangement.takes(self.tokenizer.render_chat)

    @cached_property
    def takes_with_tools(self) -> Takes:
        """The conversations that the model's template takes with tools, which some show in the first user's turn."""
        return arrangement.takes(partial(self.tokenizer.render_chat, tools=self.shown([Tool("example")])))

    def shown(self, tools: Sequence[Tool]) -> list[dict[str, Any]]:
        """The tools in the shape that the chat template takes."""
        return [tool.shown(self._wants_descriptions) for tool in tools]

    def effort(self, asked: Any) -> Any:
        """The effort of reasoning that the model knows and that is nearest to one of EFFORTS."""
        known = self.format.efforts
        if not known or asked not in EFFORTS:
            return asked
        return min(known, key=lambda each: abs(EFFORTS.index(each) - EFFORTS.index(asked)))

    @cached_property
    def _wants_descriptions(self) -> bool:
        """Whether the template refuses a tool without a description, as gpt-oss's does."""

        def takes(described: bool) -> bool:
            try:
                self.tokenizer.render_chat([{"role": "user", "content": "x"}], tools=[Tool("example").shown(described)])
            except RequestError:
                return False
            return True

        return not takes(described=False) and takes(described=True)

    def shows_tools(self, has_tools: bool = True) -> bool:
        """Whether the template of a conversation with or without tools knows of tools."""
        template = self.tokenizer.chat_templates.choose(has_tools)
        return template is not None and "tools" in template.variables

    @cached_property
    def tools_in_system(self) -> bool:
        """Whether the template shows tools that the system message has, as a text: Phi-4-mini's does."""
        probe = [{"role": "system", "content": "", "tools": "[probe]"}, {"role": "user", "content": "x"}]
        try:
            return "[probe]" in self.tokenizer.render_chat(probe)
        except RequestError:
            return False

    @property
    def layout_in_text(self) -> Layout:
        """How calls are written in contents, where control tokens cannot be."""
        marker = self.markers.get(self.format.layout.trigger)
        control = marker is not None and marker in self.tokenizer.special_token_ids
        return self.format.layout.in_words if control else self.format.layout

    def messages(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool] = ()) -> list[dict[str, Any]]:
        """Prepare a conversation for the chat template, as gradus.text.conversation describes. tools: what the model is
        shown. Raises RequestError naming the message and the field."""
        found = history.normalized(conversation.read(messages))
        takes, shows = self.takes_with_tools if tools else self.takes, self.shows_tools(bool(tools))
        in_system = bool(tools) and not shows and self.tools_in_system
        if not shows:
            found = history.as_plain_text(found, self.layout_in_text, () if in_system else tools)
        elif not takes.calls:
            found = history.with_calls_as_text(found, self.layout_in_text)
        if self.format.layout.channels:
            found = history.with_thinking(found)
        found = arrangement.arranged(found, takes)
        return history.with_tools_in_system(found, tools) if in_system else found

    def thoughts_after(self, prompt: Sequence[int]) -> Thoughts | None:
        """Find out whether a prompt leaves reasoning open: the answer begins inside it then. None: the answer has none.

        Only the assistant's own turn counts: what is behind the last control token. A user may write anything before.
        """
        if self.thoughts is None:
            return None
        if self.format.layout.channels:
            begun = ChannelParser({}, call_ids(""), self.opened_by(prompt))
            return None if begun.speaking else replace(self.thoughts, inside=begun.thinking)
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

    def opened_by(self, prompt: Sequence[int]) -> list[Reads]:
        """The part of the assistant's message that a prompt has written, where answers are messages in channels."""
        start, tail = self.markers.get(START), list(prompt[-MOST_TAIL:])
        if start not in tail:
            return []
        begin = len(tail) - 1 - tail[::-1].index(start)
        marks = Marks(TextStream(lambda token: piece(self.tokenizer.token_bytes(token))), self.marks)
        found = [*marks.push(tail[begin:]), *marks.finish()]
        said = found[1] if len(found) > 1 else ""
        return found if isinstance(said, str) and ASSISTANT.startswith(said[: len(ASSISTANT)]) else []


def _structured(grammar: str, whitespace: str = "bounded", lazy: Lazy | None = None) -> Structured:
    """Make the constraint of a grammar. Raises RequestError for one that is too large."""
    if (size := len(grammar.encode())) > MAX_GRAMMAR_BYTES:
        raise RequestError(
            f"tools must have a grammar of at most {MAX_GRAMMAR_BYTES} bytes, got {size}: declare fewer tools, or none "
            'of them strict with tool_choice "auto"',
            param="tools",
            limit=f"a grammar of at most {MAX_GRAMMAR_BYTES} bytes",
            got=size,
        )
    return Structured(grammar=grammar, whitespace=whitespace, lazy=lazy)


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
    max_calls: int = MAX_CALLS

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

    def constraint(self, prompt: Sequence[int], text: Structured | None = None) -> Structured | None:
        """Write the constraint of the answer; None if it is free. text: what an answer without calls must be.

        Raises RequestError for tools whose grammar is too large.
        """
        thoughts = self.dialect.thoughts_after(prompt)
        if not self.callable:
            if text is None or text.kind == "grammar" or thoughts is None:
                return text
            grammar = text_grammar(self.dialect.format.layout, text, self.dialect.markers, thoughts)
            return _structured(grammar, text.whitespace)
        if not self.forced and text is None:
            return self._lazy_constraint(thoughts)
        grammar = answer_grammar(
            self.dialect.format.layout,
            self.callable,
            self.dialect.markers,
            several=self.choice.parallel,
            exact=lambda tool: self.forced or tool.strict,
            thoughts=thoughts,
            text=None if self.forced else text,
        )
        return _structured(grammar, "bounded" if text is None else text.whitespace)

    def _lazy_constraint(self, thoughts: Thoughts | None) -> Structured | None:
        """Constrain calls from where they begin: to the schemas of all tools, as far as these can be kept.

        Tools that are not strict may have any arguments if their schemas cannot be kept, or not all at once.
        """
        compiles, strict = self.dialect.compiles, any(tool.strict for tool in self.callable)
        if compiles is None:
            wanted = strict or self.envelope
            return self._lazy(self.callable, thoughts, lambda tool: tool.strict) if wanted else None
        keeps, refused = self._keeping(compiles), None
        choices: tuple[Callable[[Tool], bool], ...] = (lambda tool: True, keeps, lambda tool: tool.strict)
        for exact in choices:
            try:
                found = self._lazy(self.callable, thoughts, exact)
                compiles(found)
                return found
            except RequestError as error:
                refused = error
        if strict and refused is not None:
            raise refused
        return None

    def _keeping(self, compiles: Callable[[Structured], None]) -> Callable[[Tool], bool]:
        """Return what finds out whether a tool's schema can be kept, by itself. It takes PATIENCE at most for all."""
        known, deadline = self.dialect.kept, time.monotonic() + PATIENCE

        def keeps(tool: Tool) -> bool:
            schema = json.dumps(tool.schema)
            if tool.strict or schema in known:
                return tool.strict or known[schema]
            if time.monotonic() > deadline:
                return False
            try:
                compiles(self._lazy([tool], None, lambda tool: True))
                known[schema] = True
            except RequestError:
                known[schema] = False
            if len(known) > MOST_KEPT:
                del known[next(iter(known))]
            return known.get(schema, False)

        return keeps

    def _lazy(self, tools: Sequence[Tool], thoughts: Thoughts | None, exact: Callable[[Tool], bool]) -> Structured:
        grammar, lazy = lazy_grammar(
            self.dialect.format.layout,
            tools,
            self.dialect.markers,
            several=self.choice.parallel,
            exact=exact,
            thoughts=thoughts,
        )
        return _structured(grammar, lazy=lazy)

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
        if text is not None and text.kind == "grammar" and text == self.constraint(prompt):
            return params  # constrained already
        self._check_both(text, prompt)
        constraint = self.constraint(prompt, text)
        return params if constraint is text else replace(params, structured=constraint)

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
        controls = self.dialect.controls if params.stop else NO_CONTROLS
        text = TextStream(decode, params.stop, params.min_tokens, controls)
        return AnswerStream(Marks(text, self.dialect.marks), self._parser(prompt, seed))

    def _parser(self, prompt: Sequence[int], seed: str | None) -> AnswerParser:
        tools, ids, dialect = {tool.name: tool for tool in self.callable}, call_ids(seed), self.dialect
        if dialect.format.layout.channels:
            return ChannelParser(tools, ids, dialect.opened_by(prompt), self.max_calls, self.forced)
        thoughts = dialect.thoughts_after(prompt)
        return AnswerParser(self._triggers, tools, ids, thoughts, dialect.markers, self.max_calls, self.forced)

    @property
    def _triggers(self) -> Sequence[Trigger]:
        """The beginnings of calls. A forced answer has only the one that its grammar knows."""
        format = self.dialect.format
        return [each for each in format.triggers if not self.forced or each.marker == format.layout.trigger]

    def ending(self, prompt: Sequence[int], token_bytes: Callable[[int], Piece] | None = None) -> Ending | None:
        """Make what finds the end of one sample's answer; None if nothing is called. token_bytes: as in `stream`."""
        if not self.callable:
            return None
        return Ending(self.stream(prompt, seed="", token_bytes=token_bytes), self.dialect.opens_call)

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
