"""Compiling for one model's vocabulary, and the cache of compiled templates."""

import random
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary, ref

import numpy as np

from gradus.engine.request import ModelLimits
from gradus.engine.structured import Structured
from gradus.errors import RequestError
from gradus.structured.bounds import PROBE_SECONDS, PROBED_TOKENS, parser_limits
from gradus.structured.lazy import LazyMatcher
from gradus.structured.library import Failed, guarded, llguidance, one_line, refusal
from gradus.structured.matcher import Matcher
from gradus.structured.source import source_of
from gradus.structured.vocabulary import Vocabulary

_DEAD_END = "NoExtensionBias"  # the library's name for it
_UNSATISFIABLE = "nothing satisfies it"
MAX_TEMPLATES = 64
MAX_TEMPLATE_BYTES = 8 * 2**20  # of their texts: what is compiled from them takes tens of times as much

Key = tuple[str, str, str]


class Written(Protocol):
    """A tokenizer that can be written as tokenizer.json."""

    def to_json(self) -> str: ...


_of_tokenizers: "WeakKeyDictionary[Written, Grammars]" = WeakKeyDictionary()
_begun: "WeakKeyDictionary[Written, Future[Vocabulary]]" = WeakKeyDictionary()


def begin_index(tokenizer: Written) -> None:
    """Begin to build a tokenizer's index in a thread of its own, for a front end that does not know its limits yet.

    A large vocabulary takes seconds, most of them with Python's lock. `grammars_of` uses the index, unless the
    model's logits are much wider than the tokenizer.
    """
    future = _begun[tokenizer] = Future()

    def build() -> None:
        with suppress(BaseException):  # the first request that needs it builds its own, and gets the reason
            _settle(future, lambda: Vocabulary.of(tokenizer.to_json()))

    threading.Thread(target=build, name="gradus-grammars", daemon=True).start()


def grammars_of(tokenizer: Written, limits: ModelLimits) -> "Grammars":
    """Return the grammars of a tokenizer's model: the same object for a front end and an engine in one process, so that
    what the one has checked, the other finds compiled."""
    found = _of_tokenizers.get(tokenizer)
    if found is None:
        writer = ref(tokenizer)  # the entry must not keep its own key alive

        def to_json() -> str:
            there = writer()
            assert there is not None, "its users keep the tokenizer"
            return there.to_json()

        made = Grammars(to_json, limits.vocab_size, limits.eos_token_ids, _begun.pop(tokenizer, None))
        found = _of_tokenizers.setdefault(tokenizer, made)
    return found


class Grammars:
    """Compiled constraints of one vocabulary. Safe to use from several threads.

    tokenizer_json: writes a tokenizer in the format of tokenizer.json (`gradus.loading.tokenizer.Tokenizer.to_json`).
    vocab_size: the width of a row of logits, which may exceed the tokenizer's ids (padding) or fall short of them.
    eos: the tokens that end any answer of this model. begun: an index of this tokenizer, if it is wide enough.
    """

    def __init__(
        self,
        tokenizer_json: Callable[[], str],
        vocab_size: int,
        eos: Sequence[int] = (),
        begun: "Future[Vocabulary] | None" = None,
    ) -> None:
        self._json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos = tuple(eos)
        self._lock = threading.Lock()
        self._begun = begun
        self._building: Future[Vocabulary] | None = None
        self._templates: OrderedDict[Key, Future[Template]] = OrderedDict()
        self._held: Counter[Key] = Counter()  # requests in the engine, by their constraint

    def warm(self) -> None:
        """Begin to build the vocabulary's index, in a thread of its own: it takes seconds for a large vocabulary."""
        threading.Thread(target=self._warm, name="gradus-grammars", daemon=True).start()

    def check(self, structured: Structured) -> None:
        """Compile a constraint. Raises RequestError, one line with the reason, if it can't be kept within bounds."""
        self._template(structured)

    def matcher(self, structured: Structured, stop_ids: Sequence[int] = ()) -> Matcher:
        """Begin an answer.

        stop_ids: further tokens that end it; like `eos`, they are legal only where the grammar accepts, unless the
        grammar is lazy: an answer that is free otherwise may be cut anywhere. Raises RequestError as `check` does.
        """
        template = self._template(structured)
        if structured.lazy is not None:
            return LazyMatcher(template.matcher.deep_copy(), self.vocabulary(), self._eos, structured.lazy)
        return Matcher(template.matcher.deep_copy(), self.vocabulary(), (*self._eos, *stop_ids))

    def unkept(self, structured: Structured) -> tuple[str, ...]:
        """Name the keywords of a constraint's schemas that answers need not obey: `uniqueItems`, `format=path`.

        Compiles nothing. Call it after `check`, which raises what this may raise.
        """
        with self._lock:
            future = self._templates.get(_key(structured))
        if future is not None and future.done():
            return future.result().unkept
        return source_of(structured, self.vocabulary().controls, self._eos).unkept

    def broken(self, reason: str) -> Matcher:
        """Make a matcher that allows nothing, for an answer that can't begin, be it for want of a vocabulary."""
        return Matcher.broken(reason, self._vocab_size)

    # -- the vocabulary ------------------------------------------------------------------------------------------------

    def _warm(self) -> None:
        with suppress(RequestError):  # the first request that needs it gets the reason
            self.vocabulary()

    def vocabulary(self) -> Vocabulary:
        """Return the library's index of the vocabulary. The first call builds it; others wait for that."""
        with self._lock:
            future, mine = self._building, self._building is None
            if future is None:
                future = self._building = Future()
        if mine:
            _settle(future, self._index)
        return future.result()

    def _index(self) -> Vocabulary:
        begun, self._begun = self._begun, None
        fitting = begun.result().fitted(self._vocab_size) if begun is not None and begun.exception() is None else None
        return fitting or Vocabulary.of(self._json(), self._vocab_size)

    def forget(self) -> None:
        """Drop the index and all templates that are not held: tens of megabytes. What is needed again is made again."""
        with self._lock:
            if self._building is not None and self._building.done():
                self._building = None
            self._begun = None
            for key in [key for key in self._templates if key not in self._held]:
                del self._templates[key]

    # -- templates -----------------------------------------------------------------------------------------------------

    def hold(self, structured: Structured) -> None:
        """Compile a constraint, and keep what was compiled until `release` is called as often as this.

        A held template is never dropped, so the owner must bound their number. Raises RequestError, and holds nothing,
        as `check` does.
        """
        key = _key(structured)
        with self._lock:
            self._held[key] += 1
        try:
            self._template(structured)
        except BaseException:
            self.release(structured)
            raise

    def hold_compiled(self, structured: Structured) -> bool:
        """Hold a constraint if that takes no time. Returns False, holding nothing, if it must be compiled."""
        key = _key(structured)
        with self._lock:
            future = self._templates.get(key)
            if future is None or not future.done() or future.exception() is not None:
                return False
            self._held[key] += 1
            self._templates.move_to_end(key)
        return True

    def release(self, structured: Structured) -> None:
        """Undo one `hold`. Does nothing if none is left."""
        key = _key(structured)
        with self._lock:
            self._held[key] -= 1
            if self._held[key] <= 0:
                del self._held[key]
                self._evict()

    def _template(self, structured: Structured) -> "Template":
        """Return what was compiled from this content before, wait for the thread that compiles it now, or compile it.

        An error is kept like a template. Nothing polls, so no error that a compilation raises can be mistaken for one
        that is still under way.
        """
        vocabulary = self.vocabulary()
        key = _key(structured)
        with self._lock:
            future = self._templates.get(key)
            mine = future is None
            if future is None:
                future = self._templates[key] = Future()
            self._templates.move_to_end(key)
            self._evict()
        if mine:
            _settle(future, lambda: _compile(structured, vocabulary, self._eos))
        return future.result()

    def _evict(self) -> None:
        """Drop the templates that were used least recently, except those held and the newest. Matchers made from them
        go on."""
        size, newest = sum(map(_size, self._templates)), next(reversed(self._templates), None)
        for key in list(self._templates):
            if len(self._templates) <= MAX_TEMPLATES and size <= MAX_TEMPLATE_BYTES:
                break
            if key != newest and key not in self._held:
                del self._templates[key]
                size -= _size(key)


def _key(structured: Structured) -> Key:
    return structured.kind, structured.text, structured.whitespace


def _size(key: Key) -> int:
    return len(key[1])


def _settle(future: "Future[Any]", work: Any) -> None:
    """Do the work, and give its result or its error to all that wait. Any failure becomes a RequestError."""
    try:
        with guarded():
            future.set_result(work())
    except RequestError as error:
        future.set_exception(error)
    except Failed as error:
        future.set_exception(refusal(f"can't be compiled: {error}"))
    except BaseException as error:  # an interrupt, for instance: the waiters must not wait for ever
        future.set_exception(refusal(f"compiling was interrupted: {type(error).__name__}"))
        raise


# -- compiling ---------------------------------------------------------------------------------------------------------


class Template(NamedTuple):
    """A compiled constraint. unkept: as in `Source`."""

    matcher: Any
    unkept: tuple[str, ...]


def _compile(structured: Structured, vocabulary: Vocabulary, eos: Sequence[int]) -> Template:
    """Compile, and walk the first tokens: some grammars compile in no time and can't be followed."""
    source = source_of(structured, vocabulary.controls, eos)
    matcher = llguidance().LLMatcher(vocabulary.tokenizer, source.text, log_level=0, limits=parser_limits())
    if matcher.is_error():
        raise refusal(_reason(matcher.get_error(), structured))
    _probe(matcher.deep_copy(), vocabulary, structured)
    return Template(matcher, source.unkept)


def _reason(error: str, structured: Structured) -> str:
    """Clean an error text; what it says of lines is only true where the user wrote them."""
    reason = one_line(error).removeprefix("at ")
    if structured.kind != "grammar":
        place, found, rest = reason.partition("): ")
        reason = rest if found and place.replace("(", "").isdigit() else reason
    return f"{structured.kind} can't be compiled: {reason or 'no reason given'}"


def _probe(matcher: Any, vocabulary: Vocabulary, structured: Structured) -> None:
    """Follow one path through the grammar, without its end where there is another way, and take it back.

    The first row may show that nothing can follow ({"$ref": "#"}), the rollback that the grammar has none, and the time
    that it is ambiguous: it grows with every token.
    """
    row = np.zeros(vocabulary.words, np.int32)
    chosen = random.Random(0)
    deadline = time.thread_time() + PROBE_SECONDS
    taken = 0
    while taken < PROBED_TOKENS and not matcher.is_stopped():
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        _check_probe(matcher, deadline, structured)
        token = vocabulary.any_of(row, chosen)
        if token is None:
            break
        matcher.consume_token(token)
        taken += 1
        _check_probe(matcher, deadline, structured)
    if taken and not matcher.rollback(taken):
        raise refusal(f"{structured.kind} can't be rolled back: {one_line(matcher.get_error())}")


def _check_probe(matcher: Any, deadline: float, structured: Structured) -> None:
    if matcher.is_error():
        reason = one_line(matcher.get_error())
        raise refusal(_UNSATISFIABLE if reason in ("", _DEAD_END) else f"{structured.kind} is too complex: {reason}")
    if matcher.is_stopped() and not matcher.is_accepting():
        raise refusal(_UNSATISFIABLE)
    if time.thread_time() > deadline:
        raise refusal(f"{structured.kind} is too ambiguous or too large: following it takes too long")
