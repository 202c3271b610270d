"""`gradus load`: send requests to a server on this machine, all at once, and report the results."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from threading import Semaphore
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from typer import Option

from gradus.cli import terminal
from gradus.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from http.client import HTTPResponse

MOST_REQUESTS, MOST_TOKENS = 64, 100_000
TIMEOUT_S = 600.0
LOOK_S = 0.2  # between two looks at a server that is loading
CLOCKWORK = ("uptime_s", "self_checks")  # of /stats: these change by themselves


def load(
    requests: Annotated[int, Option(help=f"Number of requests to send at once, at most {MOST_REQUESTS}.")] = 8,
    prompt_tokens: Annotated[int, Option(help="Tokens of each prompt.")] = 64,
    max_tokens: Annotated[int, Option(help="Tokens of each answer.")] = 32,
    mixed: Annotated[
        bool, Option("--mixed", help="Answers of all lengths, from a few tokens in the first request to --max-tokens.")
    ] = False,
    shared: Annotated[int, Option(help="Number of tokens at the beginning that all prompts share.")] = 0,
    long: Annotated[
        int, Option(help="Send one more request, with this many prompt tokens, once all others have a token.")
    ] = 0,
    seed: Annotated[int, Option(help="The same seed gives the same prompts.")] = 0,
    url: Annotated[str, Option(help="The server, on this machine only.")] = "http://127.0.0.1:8000",
) -> int:
    """Send requests to a running server all at once, and show when their tokens arrived and what changed in /stats.

    Prompts are random token ids, so a prompt has exactly as many tokens as you ask for, and its answer is meaningless.

    Examples:

      gradus load
      gradus load --requests 16 --mixed    # answers that end at different times
      gradus load --long 2000              # a long prompt while the others decode
      gradus load --shared 48              # prompts with the same beginning
    """
    from gradus.cli.progress import working

    server = Server.at(url)
    _check("requests", requests, 1, MOST_REQUESTS)
    _check("prompt-tokens", prompt_tokens, 1, MOST_TOKENS)
    _check("max-tokens", max_tokens, 1, MOST_TOKENS)
    _check("shared", shared, 0, prompt_tokens)
    _check("long", long, 0, MOST_TOKENS)
    before = server.ready()
    asked = jobs(before["vocab_size"], requests, prompt_tokens, max_tokens, mixed=mixed, shared=shared, seed=seed)
    if long:
        asked.append(Job(_ids(Random(f"{seed} long"), long, before["vocab_size"]), max_tokens, late=True))
    with working("the server answers"):
        answers = enumerate(zip(asked, run(server, asked), strict=True), start=1)
    terminal.print_table(
        ["request", "prompt", "answer", "first token", "longest gap", "in all"],
        [answer.row(number, job) for number, (job, answer) in answers],
    )
    terminal.print_text(f"\n/stats, what changed:\n{changes(before, server.stats())}\n")
    return 0


def _check(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise RequestError(f"--{option} must be {least} to {most}, got {value}", param=option, got=value)


# -- the requests ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt and the number of its answer's tokens. late: sent once every other request has its first token."""

    prompt: list[int]
    max_tokens: int
    late: bool = False


def jobs(
    vocab_size: int, count: int, prompt: int, most: int, *, mixed: bool = False, shared: int = 0, seed: int = 0
) -> list[Job]:
    """Make `count` random prompts. mixed: answer i of n has i / n of `most` tokens, rounded up."""
    random = Random(seed)
    same = _ids(random, shared, vocab_size)
    lengths = [-(-most * number // count) if mixed else most for number in range(1, count + 1)]
    return [Job(same + _ids(random, prompt - shared, vocab_size), length) for length in lengths]


def _ids(random: Random, count: int, vocab_size: int) -> list[int]:
    return [random.randrange(vocab_size) for _ in range(count)]


# -- sending them ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    """An answer. times: when each piece of it arrived. tokens: the number in all pieces."""

    sent: float
    times: list[float] = field(default_factory=list)
    tokens: int = 0

    def row(self, number: int, job: Job) -> list[str]:
        times = self.times or [self.sent]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        seconds = [times[0] - self.sent, max(gaps, default=0.0), times[-1] - self.sent]
        return [str(number), str(len(job.prompt)), str(self.tokens), *(f"{1000 * one:,.0f} ms" for one in seconds)]


def run(server: "Server", asked: list[Job]) -> list[Answer]:
    """Send all jobs, each on its own connection. Raises ConfigError if the server refuses one."""
    from concurrent.futures import ThreadPoolExecutor

    begun = Semaphore(0)  # released by every request that is not late, at its first token or its end

    def ask(job: Job) -> Answer:
        if job.late:
            for _ in range(sum(not one.late for one in asked)):
                begun.acquire()
            return server.answer(job)
        return server.answer(job, begun.release)

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(ask, asked))


@dataclass(frozen=True, slots=True)
class Server:
    """A Gradus server on this machine."""

    host: str
    port: int

    @classmethod
    def at(cls, url: str) -> "Server":
        """Parse the address. Raises ConfigError unless it is this machine's: this tool must not load others'
        servers."""
        from gradus.server.addresses import host_alone

        try:
            parts = urlsplit(url)
            host, port = host_alone(parts.hostname or ""), parts.port or 80
        except ValueError:
            host, port = None, 0
        own = host == "localhost" or (not isinstance(host, str | None) and host.is_loopback)
        if not own or parts.scheme != "http" or parts.path not in ("", "/"):
            raise ConfigError(f"--url must be a server on this machine, such as http://127.0.0.1:8000, got {url[:100]}")
        return cls(str(host), port)

    def ready(self) -> dict[str, Any]:
        """Its statistics, once its model is loaded."""
        from gradus.cli.progress import working

        found = self.stats()
        if found["state"] == "loading":
            with working("the server is loading its model"):
                while found["state"] == "loading":
                    sleep(LOOK_S)
                    found = self.stats()
        if "vocab_size" not in found:
            raise ConfigError(f"{self} serves no model: it is {found['state']}")
        return found

    def stats(self) -> dict[str, Any]:
        with self._answering("GET", "/stats") as response:
            return _parsed(response.read())

    def answer(self, job: Job, on_first: Callable[[], None] = lambda: None) -> Answer:
        """Stream one answer. on_first: called once, at the first token, or at the end if there is none."""
        body = {"prompt": job.prompt, "max_tokens": job.max_tokens, "ignore_eos": True, "stream": True}
        answer = Answer(perf_counter())
        try:
            with self._answering("POST", "/generate", body) as response:
                for line in response:
                    if line.startswith(b"data: {") and (ids := _parsed(line.removeprefix(b"data: "))["token_ids"]):
                        answer.times.append(perf_counter())
                        answer.tokens += len(ids)
                        if len(answer.times) == 1:
                            on_first()
        finally:
            if not answer.times:
                on_first()
        return answer

    @contextmanager
    def _answering(self, method: str, path: str, body: Any = None) -> Iterator["HTTPResponse"]:
        """Yield the response, once its status is 200. Raises ConfigError if the server is not there, or refuses."""
        from http.client import HTTPConnection, HTTPException

        connection = HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), _headers())
            response = connection.getresponse()
            if response.status != 200:
                _parsed(response.read())
                raise ConfigError(f"{self} answers {method} {path} with status {response.status}: is it gradus serve?")
            yield response
        except (OSError, HTTPException) as error:
            raise ConfigError(f"no answer from {self} ({error}): start it with gradus serve") from error
        finally:
            connection.close()

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}"


def _headers() -> dict[str, str]:
    """Add the environment's API key: a server started in the same environment requires it."""
    from gradus.server.http.keys import VARIABLE

    key = os.environ.get(VARIABLE)
    return {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})


def _parsed(text: bytes) -> dict[str, Any]:
    """Parse a JSON object from the server. Raises ConfigError with its message if it is an error."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"this is no answer of gradus serve: {text[:60]!r}")
    if "error" in found:
        raise ConfigError(f"the server refuses: {found['error']['message']}")
    return found


# -- the report --------------------------------------------------------------------------------------------------------


def changes(before: dict[str, Any], after: dict[str, Any]) -> str:
    """List the numbers of /stats that differ, one per line; nested ones are named like cache.held."""
    old, new = _numbers(before), _numbers(after)
    found = [(name, f"{old.get(name, 0)} → {value}") for name, value in new.items() if old.get(name, 0) != value]
    width = max((len(name) for name, _ in found), default=0)
    return "\n".join(f"{name:<{width}}  {change}" for name, change in found)


def _numbers(stats: dict[str, Any], prefix: str = "") -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, value in stats.items():
        if isinstance(value, dict):
            numbers |= _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and name not in CLOCKWORK:
            numbers[prefix + name] = value
    return numbers
