"""The server's settings: defaults, overridden by a YAML file, then by the command line. Each value is checked."""

import json
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from gradus.config.description import setting
from gradus.config.settings import Settings
from gradus.engine.request import MAX_SECONDS, SamplingParams
from gradus.errors import ConfigError, RequestError
from gradus.loading.default_sampling import NAMES as SAMPLING
from gradus.server.addresses import host_alone, is_origin, traces_url
from gradus.text.tools.calls import MAX_CALLS, MOST_CALLS
from gradus.text.tools.formats import NAMES

ANY_NAME = "*"
MAX_NAMES = 64
MAX_NAME_LENGTH = 256

MAX_MODELS = 64
NAMED = re.compile(r"([^=:/\\]+)=(.+)", re.DOTALL)
"""A model with a name for requests: NAME=MODEL. A path or a hub id may hold a = after its first /."""

_WHERE, _LIMITS, _ACCESS, _REPORTS, _API = "Where", "Limits", "Access", "Reports", "Protocols"
_SAMPLING = "Sampling of requests that leave it out"


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one key; None: the server's default, or no limit.

    max_samples: samples in the server at once, running or waiting. max_waiting: samples still without a token.
    tokens_per_minute: prompt and generated tokens together.
    """

    max_samples: int | None = None
    max_waiting: int | None = None
    tokens_per_minute: int | None = None

    def over(self, defaults: "KeyLimits") -> "KeyLimits":
        """Fill in the limits that this key does not set."""
        return KeyLimits(*(getattr(self, one.name) or getattr(defaults, one.name) for one in fields(self)))


@dataclass(frozen=True)
class ServerConfig(Settings):
    """All settings of one server process: the model's, the engine's, and its own.

    /stats shows every limit, and so does the error of a request that exceeds it.
    Raises ConfigError naming the key, the allowed values and the value given.
    """

    models: tuple[str, ...] = setting(
        (),
        "A model to serve, as for --model alone, or NAME=MODEL to choose its name in requests. Several are loaded when "
        "a request names them, the first one at the start; all other settings are the same for each.",
        unset="the one that model names",
        flags=("--model", "-m"),
        metavar="MODEL",
    )
    max_loaded: int = setting(
        1,
        "Most of several models that are loaded at once, each with an equal part of the memory; where another one is "
        "asked for, the one used least recently sleeps.",
        least=1,
        most=MAX_MODELS,
    )
    share: tuple[int, int] = (1, 1)
    """(models that are loaded with this one, models that may be): which part of the memory is this one's."""
    host: str = setting("127.0.0.1", "The address to listen on; beyond loopback, it needs API keys.", panel=_WHERE)
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "A name or address, without a port, that clients and web pages may call the server by, such as a proxy's; "
        "localhost and its own address always work.",
        unset="none",
        flags=("--allowed-host",),
        metavar="NAME",
        panel=_WHERE,
    )
    port: int = setting(8000, "The port; 0 takes a free one.", least=0, most=65535, panel=_WHERE)
    api_keys: str | None = setting(
        None,
        "A file of API keys, as `gradus keys add` writes it; GRADUS_API_KEY in the environment is one more key.",
        unset="none: on loopback, no key is needed",
        metavar="FILE",
        panel=_ACCESS,
    )
    no_auth: bool = setting(
        False, "Listen beyond loopback without API keys: anyone who reaches the address can use it.", panel=_ACCESS
    )
    key_max_samples: int | None = setting(
        None,
        "Most samples that a key may have at once, unless its entry says otherwise (429).",
        unset="no limit",
        least=1,
        panel=_ACCESS,
    )
    key_max_waiting: int | None = setting(
        None, "Most samples of a key that may wait for their first token.", unset="no limit", least=1, panel=_ACCESS
    )
    key_tokens_per_minute: int | None = setting(
        None,
        "Most tokens per minute and key, of prompts and answers together, unless its entry says otherwise (429).",
        unset="no limit",
        least=1,
        panel=_ACCESS,
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        "An origin, as in https://chat.example.org, whose pages may use the server from a browser.",
        unset="none",
        flags=("--cors-origin",),
        metavar="ORIGIN",
        panel=_ACCESS,
    )
    tls_cert: str | None = setting(
        None, "A certificate chain in PEM; the server then speaks https.", unset="none", metavar="FILE", panel=_ACCESS
    )
    tls_key: str | None = setting(
        None, "The certificate's private key in PEM, without a password.", unset="none", metavar="FILE", panel=_ACCESS
    )
    max_waiting: int = setting(
        256,
        "Most samples that may wait for the engine; a request counts n times, and enters whole or not at all (503).",
        least=1,
        panel=_LIMITS,
    )
    max_body_bytes: int | None = setting(
        None,
        "Largest request body, counted as it arrives; a larger one gets status 413.",
        unset="16 bytes per token of the context and 256 KiB, but at least 1 MiB",
        least=1,
        panel=_LIMITS,
    )
    max_prompt_logprobs: int = setting(
        2**18,
        "Most log-probabilities that a body may ask for of its prompts: its samples times their prompts' tokens times "
        "(1 + prompt_logprobs).",
        least=0,
        most=2**22,
        panel=_LIMITS,
    )
    max_answer_logprobs: int | None = setting(
        None,
        "Most log-probabilities of generated tokens in the answer to one body: samples × max_tokens × (1 + logprobs).",
        unset="21 per token of the context, but at least 2,097,152",
        least=1,
        panel=_LIMITS,
    )
    max_buffered: int = setting(
        4096,
        "Most tokens that may wait for one streaming client; a slower client is dropped.",
        least=1,
        panel=_LIMITS,
    )
    request_timeout: float = setting(
        300.0,
        "Time for a request's queueing and decoding together: the default, and the most that a request may ask for.",
        above=0,
        most=MAX_SECONDS,
        unit="seconds",
        panel=_LIMITS,
    )
    step_timeout: float = setting(
        120.0,
        "Time for one engine step. A longer one counts as a hang: all requests fail, and another engine is started.",
        above=0,
        unit="seconds",
        panel=_LIMITS,
    )
    sleep_after: float | None = setting(
        None,
        "Time without a request after which the engine's process ends, so that its memory is free; the next request "
        "waits until another one is loaded.",
        unset="never",
        above=0,
        unit="seconds",
        panel=_LIMITS,
    )
    on_failure: str = setting(
        "auto",
        "After the engine's fourth failure in ten minutes: exit (status 1); retry (start another engine each minute); "
        "or auto: exit as a systemd service or a container's first process, otherwise retry.",
        choices=("auto", "exit", "retry"),
        panel=_LIMITS,
    )
    drain_timeout: float = setting(
        30.0,
        "Time for running requests to finish after the first SIGTERM or SIGINT.",
        least=0,
        unit="seconds",
        panel=_LIMITS,
    )
    receive_timeout: float = setting(
        30.0, "Time for a client to send its headers, and again for its body.", above=0, unit="seconds", panel=_LIMITS
    )
    write_timeout: float = setting(
        30.0, "Time for a streaming client to read data already sent.", above=0, unit="seconds", panel=_LIMITS
    )
    ping_interval: float = setting(
        10.0,
        "Time between comments on an idle stream, which detect dead clients.",
        above=0,
        unit="seconds",
        panel=_LIMITS,
    )
    served_model_name: tuple[str, ...] = setting(
        (),
        "A name of the model in requests and in /v1/models; the first one is in answers. Requests for other models are "
        f"refused (404), unless {ANY_NAME} is among the names.",
        unset="the model's own; any other is accepted",
        metavar="NAME",
        panel=_API,
    )
    temperature: float | None = setting(
        None,
        "The temperature of requests of OpenAI's and Anthropic's protocols that name none.",
        unset="by generation_config",
        panel=_SAMPLING,
    )
    top_p: float | None = setting(None, "Their top_p.", unset="by generation_config", panel=_SAMPLING)
    top_k: int | None = setting(None, "Their top_k; 0 is off.", unset="by generation_config", panel=_SAMPLING)
    min_p: float | None = setting(None, "Their min_p.", unset="by generation_config", panel=_SAMPLING)
    repetition_penalty: float | None = setting(
        None, "Their repetition_penalty; 1 is off.", unset="by generation_config", panel=_SAMPLING
    )
    override_generation_config: str | None = setting(
        None,
        "The same five in JSON, as in '{\"temperature\": 0.2}'.",
        unset="none",
        metavar="JSON",
        panel=_SAMPLING,
    )
    generation_config: str = setting(
        "auto",
        "auto: the values not given above are those that the model's files or the catalogue recommend, or for other "
        ".gguf files llama.cpp's defaults; none (or vllm): the protocols' own.",
        choices=("auto", "none", "vllm"),
        panel=_SAMPLING,
    )
    strict_fields: bool = setting(
        False,
        "Refuse a request with a field that this server does not read, instead of naming the field in a header.",
        panel=_API,
    )
    tool_format: str | None = setting(
        None,
        f"The format of tools and calls: {', '.join(NAMES)}. Name one if the model can call tools and its files do "
        "not say so.",
        unset="found by the model's files",
        choices=NAMES,
        panel=_API,
    )
    tool_schemas: str = setting(
        "all",
        "Whose schemas calls obey where a model is free to call (tool_choice auto). all: those of all tools, from the "
        "beginning of a call on; strict: those of tools that the request marks as strict.",
        choices=("all", "strict"),
        panel=_API,
    )
    max_tool_calls: int = setting(
        MAX_CALLS,
        "Most calls in one answer, which ends with the last of them.",
        least=1,
        most=MOST_CALLS,
        panel=_API,
    )
    tokenizer_info: bool = setting(False, "Answer /tokenizer_info, which shows the chat template.", panel=_API)
    log_level: str = setting(
        "info",
        "debug (one line per request as well), info, warning or error; prompts and answers are never logged.",
        choices=("debug", "info", "warning", "error"),
        panel=_REPORTS,
    )
    log_format: str = setting("text", "text, or json: one object per line.", choices=("text", "json"), panel=_REPORTS)
    log_requests: bool = setting(
        False,
        "Log one line per request at level info: sender, route, outcome, tokens and times, and why it was refused. "
        "Requests that fail in the server (status 500 and above) are always logged.",
        panel=_REPORTS,
    )
    log_bodies: str | None = setting(
        None,
        "Write each request's body and its answer to this file, prompts and all, as JSON lines: to debug a client.",
        unset="none",
        metavar="FILE",
        panel=_REPORTS,
    )
    page: bool = setting(
        True, "Answer browsers at / with a page: a chat, with conversations kept in the browser alone.", panel=_REPORTS
    )
    metrics_alias: str = setting(
        "vllm",
        "vllm: /metrics also has the names that vLLM's dashboards read; none: only Gradus's own.",
        choices=("vllm", "none"),
        panel=_REPORTS,
    )
    price_per_hour: float | None = setting(
        None,
        "The price of an hour of the device; /metrics and the log then show the cost of requests.",
        unset="none",
        above=0,
        panel=_REPORTS,
    )
    otlp_traces_endpoint: str | None = setting(
        None,
        "Send a trace of each request to this collector by OTLP over HTTP, as in http://localhost:4318; needs the "
        "extra otel.",
        unset="none",
        metavar="URL",
        panel=_REPORTS,
    )
    otlp_capture_content: bool = setting(
        False, "Put prompts and answers into the traces, up to 32,768 characters each.", panel=_REPORTS
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settle_models()
        self._check_traces()
        for name in self.allowed_hosts:
            if host_alone(name) is None:
                raise ConfigError(f"allowed_hosts takes names and addresses without scheme, port or path, got {name!r}")
        for origin in self.cors_origins:
            if not is_origin(origin):
                raise ConfigError(f"cors_origins takes origins such as https://chat.example.org, got {origin!r}")
        if self.sleep_after is not None and self.phase is not None:
            raise ConfigError(f"sleep_after is for the final engine, not for phase {self.phase}: leave one of them out")
        if self.sleep_after is not None and self.remote:
            raise ConfigError("sleep_after frees no memory where a runner has the model: leave one of them out")
        _check_names(self.served_model_name)
        _ = self.sampling  # raises for values that no request could have
        if (self.tls_cert is None) != (self.tls_key is None):
            given = self.tls_cert or self.tls_key
            raise ConfigError(f"tls_cert and tls_key belong together: give both, or neither, got {given} alone")

    def _check_traces(self) -> None:
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and traces_url(endpoint) is None:
            raise ConfigError(
                "otlp_traces_endpoint takes an http or https URL of a collector's OTLP over HTTP (port 4318; 4317 is "
                "gRPC's) without credentials (those go into OTEL_EXPORTER_OTLP_HEADERS), got "
                f"{endpoint.rpartition('@')[2][:60]!r}"
            )
        if self.otlp_capture_content and endpoint is None:
            raise ConfigError("otlp_capture_content has no effect without otlp_traces_endpoint: give both, or neither")

    def _settle_models(self) -> None:
        """Turn a list of one model into `model`. Raises ConfigError for what does not combine with several."""
        if len(self.models) == 1:
            (only,) = self.models
            named = NAMED.fullmatch(only)
            object.__setattr__(self, "model", named[2] if named else only)
            if named:
                object.__setattr__(self, "served_model_name", (named[1], *self.served_model_name))
            object.__setattr__(self, "models", ())
        if not self.models:
            return
        if len(self.models) > MAX_MODELS:
            raise ConfigError(f"model takes at most {MAX_MODELS} models, got {len(self.models)}")
        for name in SINGLE:
            if getattr(self, name) not in (None, (), 1):
                raise ConfigError(f"{name} is for one model, not for {len(self.models)}: {SINGLE[name]}")
        if self.max_loaded > len(self.models):
            raise ConfigError(f"max_loaded must be at most {len(self.models)}, the number of models")
        names = [named for named, _ in self._named()]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two models are called {name}: write NAME=MODEL for one of them")
        _check_names(tuple(names))

    def _named(self) -> list[tuple[str, str]]:
        """Return the models with their names in requests."""
        from gradus.loading import model_name

        found = [(NAMED.fullmatch(text), text) for text in self.models]
        return [(named[1], named[2]) if named else (model_name(text), text) for named, text in found]

    def each(self) -> "list[ServerConfig]":
        """Return one configuration for each model: this one, if there is one model."""
        if not self.models:
            return [self]
        return [
            replace(self, models=(), model=model, served_model_name=(name,), max_loaded=1)
            for name, model in self._named()
        ]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that were given to the model."""
        return tuple(name for name in dict.fromkeys(self.served_model_name) if name != ANY_NAME)

    @property
    def takes_any_name(self) -> bool:
        """Whether a request may call the model by a name that is not its own."""
        return not self.served_model_name or ANY_NAME in self.served_model_name

    @property
    def sampling(self) -> dict[str, float]:
        """The sampling that was given for requests that leave it out, by the names of SamplingParams."""
        given = {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}
        override = _read_override(self.override_generation_config)
        if twice := sorted(given.keys() & override.keys()):
            raise ConfigError(f"{twice[0]} is given twice: leave it out of override_generation_config, or alone")
        given |= override
        try:
            SamplingParams(**given)
        except RequestError as error:
            raise ConfigError(str(error)) from error
        return given

    @property
    def key_limits(self) -> KeyLimits:
        """The default limits of keys, for entries without their own."""
        return KeyLimits(self.key_max_samples, self.key_max_waiting, self.key_tokens_per_minute)

    @classmethod
    def from_yaml(cls, path: str | Path) -> "ServerConfig":
        """Read a file of `key: value` lines, each key a field of this class. Raises ConfigError, naming the file."""
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
            return cls().replaced(_models_of(content))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error


SINGLE = {
    "phase": "a phase keeps its engine's memory, so leave it out",
    "served_model_name": "write NAME=MODEL for each",
    "speculate": "a drafter fits one model, so leave it out",
    "tool_format": "each model's own is found by its files, so leave it out",
    "tensor_parallel": "its devices' memory is not shared out, so leave it out",
    "pipeline_parallel": "its devices' memory is not shared out, so leave it out",
    "prefix_dir": "a directory keeps one engine's prefixes, so leave it out",
    "host_cache": "host memory is not shared out, so leave it out",
    "runner": "a runner has one model's memory, so leave it out",
}
"""Settings that do not combine with several models, and what to do."""


def _models_of(content: dict[Any, Any]) -> dict[Any, Any]:
    """Let `model` be a list in a file. A single one of several models is written as `model: x`, too."""
    if not isinstance(content.get("model"), list):
        return content
    return {name: value for name, value in content.items() if name != "model"} | {"models": content["model"]}


def _check_names(names: tuple[str, ...]) -> None:
    """Raise ConfigError for names that are no text that a person can read and a client can send."""
    if len(names) > MAX_NAMES:
        raise ConfigError(f"served_model_name takes at most {MAX_NAMES} names, got {len(names)}")
    for name in names:
        if not name.isprintable() or not name.strip() or len(name) > MAX_NAME_LENGTH:
            limit = f"names of 1 to {MAX_NAME_LENGTH} printable characters"
            raise ConfigError(f"served_model_name takes {limit}, got {name[:60]!r}")


def _read_override(text: str | None) -> dict[str, float]:
    """Read override_generation_config. A null counts as absent. Raises ConfigError."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"override_generation_config must be a JSON object, got {(text or '')[:60]!r}")
    for name in found:
        if name not in SAMPLING:
            raise ConfigError(f"override_generation_config takes {', '.join(SAMPLING)}, got {name[:60]!r}")
    return {name: value for name, value in found.items() if value is not None}
