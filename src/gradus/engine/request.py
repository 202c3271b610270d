"""The request of a caller, checked once.

`SamplingParams` checks everything that needs no model (types, ranges, sizes); `Request.create` adds what only the
model knows (its vocabulary, its context) and resolves every default. Every front end goes through these two, so a
request that exists is one that the engine can serve: nothing behind this file checks a field again. No torch here.
"""

import math
import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from gradus.engine.meaning import documented, param
from gradus.engine.structured import Structured
from gradus.errors import ConfigError, RequestError

MAX_N = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKENS = 64
MAX_EOS_TOKENS = 64
MAX_LOGIT_BIAS = 1024
MAX_WHOLE = 2**63 - 1  # what a signed 64-bit number holds: columns and messages have no larger ones
MAX_SEED = MAX_WHOLE
MAX_PRIORITY = 1000
MAX_SECONDS = 7 * 24 * 3600
MAX_SALT_CHARACTERS = 1024
DEFAULT_MAX_TOKENS = 256


class TokenBias(dict[int, float]):
    """An immutable dict. Unlike a mapping proxy, it can be pickled, copied and passed to `asdict`."""

    def _refuse_change(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("sampling parameters do not change: make new ones with dataclasses.replace")

    __setitem__ = __delitem__ = __ior__ = _refuse_change
    clear = pop = popitem = setdefault = update = _refuse_change

    def __reduce__(self) -> tuple[type["TokenBias"], tuple[dict[int, float]]]:
        return type(self), (dict(self),)  # the usual way fills an empty one, entry by entry


@documented
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens, and when to stop. Raises RequestError naming the field, its limit and what was given."""

    max_tokens: int | None = param(
        f"most tokens to generate; None means {DEFAULT_MAX_TOKENS}, or fewer where the context ends.", default=None
    )
    temperature: float = param(
        "0 is greedy (the default: reproducible, and the course's oracle); 1 samples the model's distribution.",
        default=0.0,
    )
    top_k: int = param(
        "sample among the k likeliest tokens (ties kept); 0, -1, and any k from the vocabulary's size on are off.",
        default=0,
    )
    top_p: float = param(
        "sample among the likeliest tokens that together reach this probability (Holtzman et al. 2020); 1 is off, "
        "and 0 keeps the likeliest.",
        default=1.0,
    )
    min_p: float = param(
        "drop tokens less likely than min_p times the likeliest (Nguyen et al. 2024); 0 is off.", default=0.0
    )
    repetition_penalty: float = param(
        "divides positive and multiplies negative logits of tokens seen in prompt or output (Keskar et al. 2019); "
        "1 is off.",
        default=1.0,
    )
    presence_penalty: float = param("subtracted once from the logits of tokens in the output; 0 is off.", default=0.0)
    frequency_penalty: float = param(
        "subtracted from the logits of tokens in the output, once per occurrence; 0 is off.", default=0.0
    )
    logit_bias: Mapping[int, float] = param(
        "token id → value from -100 to 100, added to its logit.", default_factory=dict
    )
    seed: int | None = param("the tokens depend on it and on nothing else in the batch; None draws one.", default=None)
    n: int = param("independent samples of the prompt; sample i > 0 uses a seed derived from `seed` and i.", default=1)
    stop: Sequence[str] = param("strings that end the text; none of them is ever part of it.", default=())
    stop_token_ids: Sequence[int] = param(
        "tokens that end the sequence, in addition to the model's end-of-sequence tokens.", default=()
    )
    min_tokens: int = param(
        "no stop token is sampled, and no stop string looked for, before that many tokens.", default=0
    )
    ignore_eos: bool = param(
        "the model's end-of-sequence tokens do not stop (`stop_token_ids` still do).", default=False
    )
    logprobs: int | None = param(
        "report the log-probability of each token and of that many likeliest ones, from the model's own distribution: "
        "before penalties, bias and temperature. None reports nothing.",
        default=None,
    )
    prompt_logprobs: int | None = param(
        "report the same of the prompt's tokens, except the first, which follows nothing. The whole prompt is then "
        "computed, whatever the prefix cache has. None reports nothing.",
        default=None,
    )

    structured: Structured | None = param(
        "what the answer must be: JSON of a schema, a regular expression's match, a grammar's sentence, or a choice "
        "(an object with `json_schema`, `json`, `regex`, `grammar` or `choice`). None leaves it free.",
        default=None,
    )

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1, MAX_WHOLE)
        self._set("temperature", _real("temperature", self.temperature, 0, 100))
        _whole("top_k", self.top_k, -1, MAX_WHOLE)
        self._set("top_p", _real("top_p", self.top_p, 0, 1))
        if self.top_p == 0:  # the likeliest token reaches it
            self._set("top_k", 1)
            self._set("top_p", 1.0)
        self._set("min_p", _real("min_p", self.min_p, 0, 1))
        self._set("repetition_penalty", _real("repetition_penalty", self.repetition_penalty, 0, 100, above=True))
        self._set("presence_penalty", _real("presence_penalty", self.presence_penalty, -2, 2))
        self._set("frequency_penalty", _real("frequency_penalty", self.frequency_penalty, -2, 2))
        self._set("logit_bias", _bias(self.logit_bias))
        if self.seed is not None:
            _whole("seed", self.seed, 0, MAX_SEED)
        _whole("n", self.n, 1, MAX_N)
        self._set("stop", _stop_strings(self.stop))
        self._set("stop_token_ids", _stop_tokens(self.stop_token_ids))
        _whole("min_tokens", self.min_tokens, 0, MAX_WHOLE)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError.of("min_tokens", f"at most max_tokens ({self.max_tokens})", self.min_tokens)
        if not isinstance(self.ignore_eos, bool):
            raise RequestError.of("ignore_eos", "true or false", self.ignore_eos)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 0, MAX_LOGPROBS)
        if self.structured is not None:
            self._set("structured", Structured.of(self.structured))
            self._check_endings()

    def _check_endings(self) -> None:
        """The grammar decides when an answer is complete; nothing else may keep it from ending there."""
        if self.structured is None or self.structured.lazy is not None:  # a free answer ends like any other
            return
        for name, limit in (("ignore_eos", "false"), ("min_tokens", "0")):
            if given := getattr(self, name):
                limit += " with `structured`, whose answers end where their grammar does"
                raise RequestError.of(name, limit, given)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen; this is its constructor speaking

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalized(self) -> bool:
        """Whether sampling depends on the tokens before."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@documented
@dataclass(frozen=True, slots=True)
class SchedulingParams:
    """A request's order, time limits and cache sharing. Raises RequestError naming field, limit and value."""

    priority: int = param(
        'under the policy "priority" a lower number goes first, and may push a higher one out of the batch.', default=0
    )
    deadline: float | None = param(
        "seconds after its arrival by which the last token must be there. A request that cannot make it any more ends "
        'with finish_reason "deadline", and no further step is spent on it. None is no deadline.',
        default=None,
    )
    timeout: float | None = param(
        'seconds after its arrival when it ends with finish_reason "timeout", wherever it is. None is no timeout.',
        default=None,
    )
    cache_salt: str | None = param(
        "requests share cached prefixes only with those of the same salt; so tenants learn nothing from how fast an "
        "answer comes. Requests without one share among themselves.",
        default=None,
    )

    def __post_init__(self) -> None:
        limit = f"a whole number between {-MAX_PRIORITY} and {MAX_PRIORITY}"
        if not isinstance(self.priority, int) or isinstance(self.priority, bool) or abs(self.priority) > MAX_PRIORITY:
            raise RequestError.of("priority", limit, self.priority)
        for name in ("deadline", "timeout"):
            seconds = getattr(self, name)
            if seconds is not None:
                object.__setattr__(self, name, _real(name, seconds, 0, MAX_SECONDS, above=True))
        salt = self.cache_salt
        if salt is not None and (not isinstance(salt, str) or not 1 <= len(salt) <= MAX_SALT_CHARACTERS):
            raise RequestError.of("cache_salt", f"a string of 1 to {MAX_SALT_CHARACTERS} characters", salt)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of a request: token ids in [0, vocab_size), prompt and output within context_length tokens.

    structured: whether the engine keeps to `SamplingParams.structured`; others refuse such a request. lazy: also where
    the grammar's sentences begin in a free answer.
    prompt_logprobs: whether it reports `SamplingParams.prompt_logprobs`; others refuse such a request.

    Raises ConfigError for more end-of-sequence tokens than sampling has room to ban.
    """

    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...] = ()
    structured: bool = False
    lazy: bool = False
    prompt_logprobs: bool = False

    def __post_init__(self) -> None:
        if len(self.eos_token_ids) > MAX_EOS_TOKENS:
            raise ConfigError(
                f"eos_token_ids: at most {MAX_EOS_TOKENS} end-of-sequence tokens, got {len(self.eos_token_ids)}"
            )


@dataclass(frozen=True, slots=True)
class Request:
    """A request that can be served: token ids in, and every default resolved. Immutable.

    packed: the prompt as other processes receive it (`packed_ids`); empty in a rank's copy, which sends it nowhere.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    seed: int
    stop_ids: frozenset[int]
    scheduling: SchedulingParams = SchedulingParams()
    packed: bytes = field(default=b"", repr=False, compare=False)

    @classmethod
    def create(
        cls,
        id: str,
        prompt: Iterable[int],
        params: SamplingParams,
        limits: ModelLimits,
        scheduling: SchedulingParams | None = None,
    ) -> "Request":
        """Check `prompt` and `params` against the model. Raises RequestError; nothing is queued or kept."""
        tokens = _prompt(prompt, limits)
        lazy = params.structured is not None and params.structured.lazy is not None
        if params.structured is not None and not (limits.lazy if lazy else limits.structured):
            raise RequestError.of(
                "structured", "left out: this engine cannot keep to a grammar", params.structured.kind
            )
        if params.prompt_logprobs is not None and not limits.prompt_logprobs:
            limit = "left out: this engine keeps no logits of a prompt's tokens"
            raise RequestError.of("prompt_logprobs", limit, params.prompt_logprobs)
        for token in params.stop_token_ids:
            _whole("stop_token_ids", token, 0, limits.vocab_size - 1)
        for token in params.logit_bias:
            _whole("logit_bias", token, 0, limits.vocab_size - 1)
        eos = () if params.ignore_eos else limits.eos_token_ids
        if params.structured is not None and not lazy and not {*eos, *params.stop_token_ids}:
            raise RequestError.of(
                "structured", "left out: the model names no end-of-sequence token", params.structured.kind
            )
        return cls(
            id=id,
            prompt=tokens,
            params=params,
            max_tokens=_resolve_max_tokens(len(tokens), params, limits),
            seed=secrets.randbelow(MAX_SEED) if params.seed is None else params.seed,
            stop_ids=frozenset(eos) | frozenset(params.stop_token_ids),
            scheduling=scheduling or SchedulingParams(),
            packed=packed_ids(tokens),
        )

    @property
    def longest(self) -> int:
        """The most tokens that prompt and output can have together."""
        return len(self.prompt) + self.max_tokens

    def seed_of(self, index: int) -> int:
        """The seed of sample `index`: the request's own for the first, then 64-bit golden-ratio steps away from it."""
        return (self.seed + index * 0x9E3779B97F4A7C15) % 2**64


def packed_ids(tokens: Sequence[int]) -> bytes:
    """Pack token ids: 4 bytes each, little-endian."""
    return struct.pack(f"<{len(tokens)}i", *tokens)


def unpacked_ids(packed: bytes) -> tuple[int, ...]:
    """Return the ids that `packed_ids` has packed. Raises struct.error for bytes that are no whole number of ids."""
    return struct.unpack(f"<{len(packed) // 4}i", packed)


def _prompt(prompt: Iterable[int], limits: ModelLimits) -> tuple[int, ...]:
    if isinstance(prompt, str | bytes) or not isinstance(prompt, Iterable):
        raise RequestError.of("prompt", "text or a list of token ids", prompt)
    tokens = _plain(prompt)
    if not tokens:
        raise RequestError(
            "prompt must have at least 1 token, got an empty one", param="prompt", limit="at least 1 token", got=0
        )
    # all at once, in a fraction of the time; one by one only to name the token that is wrong
    if set(map(type, tokens)) != {int} or min(tokens) < 0 or max(tokens) >= limits.vocab_size:
        for token in tokens:
            _whole("prompt", token, 0, limits.vocab_size - 1, noun="token ids")
    if len(tokens) >= limits.context_length:
        most = limits.context_length - 1
        raise RequestError(
            f"prompt must have at most {most} tokens (context {limits.context_length}, one of them to generate), "
            f"got {len(tokens)}",
            param="prompt",
            limit=f"at most {most} tokens",
            got=len(tokens),
        )
    return tokens


def _plain(prompt: Iterable[Any]) -> tuple[Any, ...]:
    """Convert token ids to Python integers, if they come as a one-dimensional array or tensor, or as its items."""
    if getattr(prompt, "ndim", 1) != 1:
        shape = tuple(prompt.shape)  # type: ignore[attr-defined]
        limit, got = "text or a list of token ids", f"an array of shape {shape}"
        raise RequestError(
            f"prompt must be {limit}, got {got}: give each prompt alone", param="prompt", limit=limit, got=got
        )
    tokens = tuple(prompt.tolist() if hasattr(prompt, "tolist") else prompt)
    if set(map(type, tokens)) <= {int}:
        return tokens
    return tuple(token.item() if getattr(token, "ndim", None) == 0 else token for token in tokens)


def _resolve_max_tokens(prompt_length: int, params: SamplingParams, limits: ModelLimits) -> int:
    room = limits.context_length - prompt_length
    where = f"(prompt {prompt_length} tokens, context {limits.context_length})"
    if params.max_tokens is None:
        if params.min_tokens > room:
            raise RequestError.of("min_tokens", f"at most {room} {where}", params.min_tokens)
        return max(min(DEFAULT_MAX_TOKENS, room), params.min_tokens)
    if params.max_tokens > room:
        raise RequestError.of("max_tokens", f"between 1 and {room} {where}", params.max_tokens)
    return params.max_tokens


def _whole(param: str, value: Any, low: int, high: int, noun: str = "") -> int:
    limit = f"a whole number between {low} and {'2**63 - 1' if high == MAX_WHOLE else high}"
    limit = f"{noun}, each {limit}" if noun else limit
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError.of(param, limit, value)
    return value


def _real(param: str, value: Any, low: float, high: float, *, above: bool = False) -> float:
    limit = f"a number above {low} and at most {high}" if above else f"a number between {low} and {high}"
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise RequestError.of(param, limit, value)
    if not (low < value <= high if above else low <= value <= high) or not math.isfinite(value):
        raise RequestError.of(param, limit, value)
    return float(value) + 0.0  # turns -0.0 into 0.0


def _bias(value: Any) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise RequestError.of("logit_bias", "an object of token id → number", value)
    if len(value) > MAX_LOGIT_BIAS:
        raise RequestError.of("logit_bias", f"at most {MAX_LOGIT_BIAS} entries", len(value))
    bias: dict[int, float] = {}
    for key, amount in value.items():
        # JSON has no integer keys: there, and only there, a token id comes as its decimal digits
        token = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 12 else key
        bias[_whole("logit_bias", token, 0, MAX_WHOLE, noun="token ids")] = _real("logit_bias", amount, -100, 100)
    return TokenBias(bias)


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    limit = f"at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_CHARACTERS} characters"
    if not isinstance(strings, list | tuple) or len(strings) > MAX_STOP_STRINGS:
        raise RequestError.of("stop", limit, value)
    for string in strings:
        if not isinstance(string, str) or not 1 <= len(string) <= MAX_STOP_CHARACTERS:
            raise RequestError.of("stop", limit, string)
    return tuple(strings)


def _stop_tokens(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_STOP_TOKENS:
        raise RequestError.of("stop_token_ids", f"a list of at most {MAX_STOP_TOKENS} token ids", value)
    return tuple(_whole("stop_token_ids", token, 0, MAX_WHOLE, noun="token ids") for token in value)
