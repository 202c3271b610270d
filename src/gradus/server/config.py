"""What a server can be told: defaults, then a YAML file, then the command line; each value checked when it is set."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradus.config.options import POLICIES, check_fraction, check_switches
from gradus.engine.request import MAX_SECONDS
from gradus.errors import ConfigError

LOG_LEVELS = ("debug", "info", "warning", "error")

MAX_JSON_DEPTH = 64
MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 * 1024

AT_LEAST_ONE = (
    "context_length",
    "max_sequences",
    "page_size",
    "cache_tokens",
    "token_budget",
    "max_waiting",
    "max_body_bytes",
    "max_buffered",
)


@dataclass(frozen=True)
class ServerConfig:
    """Everything about one server process. Raises ConfigError naming the key, what it takes and what was given.

    What to serve:
        model: a catalogue name, a folder, a .gguf file, a hub id, or `random:<shape>`.
        phase: the step of the course to run it with, such as "p01"; None is the final engine.
        device, dtype: "auto" lets the engine choose.
        context_length: most tokens of prompt and output together; None is the model's own limit.
        max_sequences: most sequences that run at once, in phases that batch; None is 8, and for the final engine on a
            GPU 256.
        page_size, cache_tokens, policy, token_budget: tokens in a page of the cache, tokens that all of it has room
            for, who goes first ("fcfs", "priority", "deadline"), most tokens a step; None is what suits the phase. One
            that the phase has no use for is refused.
        memory_fraction, switch_off: for the final engine. The part of the device's memory that may be in use, from
            which the size of the cache follows; and names of optimizations to leave out.
    Where:
        host: the address to listen on. There is no authentication yet: beyond loopback, whoever reaches it can use it.
        port: 0 takes a free one.
    How much (every limit is shown at /stats, and in the error of a request that meets it):
        max_waiting: most samples (a request counts its `n`) that may wait for the engine; beyond that, 503.
        max_body_bytes: largest request body; beyond that, 413.
        max_buffered: results that may wait for one streaming client; a client further behind is dropped.
    How long, in seconds:
        request_timeout: a request's queueing and decoding together. A request may ask for less, not for more.
        step_timeout: one engine step. A longer one counts as a hang: the server turns unhealthy and all waiters
            are told.
        drain_timeout: after SIGTERM, for the requests under way to end by themselves.
        receive_timeout: for a client to send its headers, and again to send its body.
        write_timeout: for a streaming client to take what it was sent.
        ping_interval: a stream with nothing to say sends a comment this often, so that dead clients are noticed.
    log_level: "debug" (with one line a request), "info", "warning" or "error".
    """

    model: str = "smollm2-135m"
    phase: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    context_length: int | None = None
    max_sequences: int | None = None
    page_size: int | None = None
    cache_tokens: int | None = None
    policy: str | None = None
    token_budget: int | None = None
    memory_fraction: float | None = None
    switch_off: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    max_waiting: int = 256
    max_body_bytes: int = 1 << 20
    max_buffered: int = 4096
    request_timeout: float = 300.0
    step_timeout: float = 120.0
    drain_timeout: float = 30.0
    receive_timeout: float = 30.0
    write_timeout: float = 30.0
    ping_interval: float = 10.0
    log_level: str = "info"

    def __post_init__(self) -> None:
        if isinstance(self.switch_off, list):  # as YAML and the command line have it
            object.__setattr__(self, "switch_off", tuple(self.switch_off))
        for name, kind in typing.get_type_hints(type(self)).items():
            _check_type(name, kind, getattr(self, name))
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, got {self.port}")
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"log_level must be one of {', '.join(LOG_LEVELS)}, got {self.log_level!r}")
        if self.drain_timeout < 0:
            raise ConfigError(f"drain_timeout must be 0 or more, got {self.drain_timeout}")
        if self.policy is not None and self.policy not in POLICIES:
            raise ConfigError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        if self.memory_fraction is not None:
            check_fraction(self.memory_fraction)
        check_switches(self.switch_off)
        for name in AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be 1 or more, got {value}")
        for name in ("request_timeout", "step_timeout", "receive_timeout", "write_timeout", "ping_interval"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be a number of seconds above 0, got {getattr(self, name)}")
        if self.request_timeout > MAX_SECONDS:  # what a request may have at all
            raise ConfigError(f"request_timeout must be at most {MAX_SECONDS} seconds, got {self.request_timeout}")

    @classmethod
    def from_yaml(cls, path: str | Path) -> "ServerConfig":
        """A file of `key: value` lines, each key a field of this class. Raises ConfigError, naming the file."""
        import yaml

        try:
            content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: is not YAML ({' '.join(str(error).split())})") from error
        content = {} if content is None else content
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: must hold `key: value` lines, found a {type(content).__name__}")
        try:
            return cls()._replaced(content)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def merge(self, overrides: Mapping[str, Any]) -> "ServerConfig":
        """A copy with `overrides` applied, those that are None left out (a command-line flag that was not given)."""
        return self._replaced({key: value for key, value in overrides.items() if value is not None})

    def _replaced(self, values: Mapping[Any, Any]) -> "ServerConfig":
        known = [field.name for field in dataclasses.fields(self)]
        for key in values:
            if key not in known:
                raise ConfigError(f"unknown key {str(key)!r}{did_you_mean(str(key), known)}")
        return dataclasses.replace(self, **values)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing when no known name is near."""
    near = difflib.get_close_matches(name[:64], list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _check_type(name: str, kind: Any, value: Any) -> None:
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, tuple) or not all(isinstance(one, str) for one in value):
            raise ConfigError(f"{name} must be a list of texts, got {value!r}")
        return
    allowed = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if float in allowed:
        allowed = (*allowed, int)
    # in Python True is an int; nobody who writes `port: yes` means port 1
    if isinstance(value, bool) or not isinstance(value, allowed):
        words = {str: "text", int: "a whole number", float: "a number", types.NoneType: "null"}
        wanted = " or ".join(words[one] for one in typing.get_args(kind) or (kind,))
        raise ConfigError(f"{name} must be {wanted}, got {value!r}")
