"""The server's settings: defaults, then a YAML file, then the command line; each value is checked when it is set."""

from dataclasses import dataclass
from pathlib import Path

from gradus.config.description import setting
from gradus.config.settings import Settings
from gradus.engine.request import MAX_SECONDS
from gradus.errors import ConfigError
from gradus.server.http.hosts import host_alone
from gradus.text.tools.formats import NAMES

MAX_JSON_DEPTH = 64
MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 * 1024

_WHERE, _LIMITS, _API = "Where", "Limits", "Protocols"


@dataclass(frozen=True)
class ServerConfig(Settings):
    """All settings of one server process: the model's, the engine's, and its own.

    Every limit is shown at /stats, and in the error of a request that exceeds it.
    Raises ConfigError naming the key, the allowed values and the value given.
    """

    # There is no authentication yet: beyond loopback, any client that reaches the address can use the server.
    host: str = setting("127.0.0.1", "The address to listen on; beyond loopback nothing authenticates.", panel=_WHERE)
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
    max_waiting: int = setting(
        256,
        "Most samples that may wait for the engine; a request counts n times, and enters whole or not at all (503).",
        least=1,
        panel=_LIMITS,
    )
    max_body_bytes: int = setting(
        1 << 20, "Largest request body, counted as it arrives; beyond, 413.", least=1, panel=_LIMITS
    )
    max_buffered: int = setting(
        4096,
        "Tokens that may wait for one streaming client; a client further behind is dropped.",
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
        "An idle stream sends a comment this often, to detect dead clients.",
        above=0,
        unit="seconds",
        panel=_LIMITS,
    )
    generation_config: str = setting(
        "auto",
        "auto: a request of OpenAI's or Anthropic's protocol that leaves temperature, top_p, top_k, min_p or "
        "repetition_penalty out gets the value in the model's generation_config.json; none: the protocol's own.",
        choices=("auto", "none"),
        panel=_API,
    )
    strict_fields: bool = setting(
        False,
        "Refuse a request with a field that this server does not read, instead of naming it in a header.",
        panel=_API,
    )
    tool_format: str | None = setting(
        None,
        f"How the model is shown tools and calls them: {', '.join(NAMES)}. Naming a format lets a model call by itself "
        "whose files do not show that it was taught to.",
        unset="found by the model's files",
        choices=NAMES,
        panel=_API,
    )
    tokenizer_info: bool = setting(False, "Answer /tokenizer_info, which shows the chat template.", panel=_API)
    log_level: str = setting(
        "info",
        "debug (one line per request as well), info, warning or error; prompts and answers are never logged.",
        choices=("debug", "info", "warning", "error"),
        panel=_WHERE,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.allowed_hosts:
            if host_alone(name) is None:
                raise ConfigError(f"allowed_hosts takes names and addresses without scheme, port or path, got {name!r}")

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
            return cls().replaced(content)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
