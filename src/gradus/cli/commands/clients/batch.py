"""`gradus batch`: answer a file of requests, on a server that runs or on an engine of its own."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from typer import Argument, Option

from gradus import extras
from gradus.cli import options, terminal
from gradus.config.settings import Settings
from gradus.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from gradus.load.asking.target import Target
    from gradus.load.batch.lines import Output
    from gradus.load.batch.sending import Counts, Rules

_WHERE, _ENGINE = "Server", "An engine of its own"
URL = "http://127.0.0.1:8000"
MOST_AT_ONCE = 1024
LOOK_S = 0.05


@options.settings_of(Settings, without=("model",), panel=_ENGINE)
def batch(
    requests: Annotated[Path, Argument(help="The requests: OpenAI's batch lines (custom_id, method, url, body).")],
    answers: Annotated[Path, Argument(help="The answers: added to this file, which may hold some already.")],
    model: Annotated[
        str | None,
        Option("--model", "-m", help="Start an engine with this model, for the batch alone.", rich_help_panel=_ENGINE),
    ] = None,
    base_url: Annotated[
        str | None,
        Option("--base-url", "--url", help=f"A server that runs; {URL} without --model.", rich_help_panel=_WHERE),
    ] = None,
    concurrency: Annotated[int, Option(help="Requests under way at once.", rich_help_panel=_WHERE)] = 64,
    tries: Annotated[
        int, Option(help="How often a request is sent where the server has no room or fails.", rich_help_panel=_WHERE)
    ] = 10,
    timeout: Annotated[float, Option(help="Seconds for one answer.", rich_help_panel=_WHERE)] = 3600.0,
    yes_this_server_is_mine: Annotated[
        bool, Option("--yes-this-server-is-mine", help="Use a server on another machine.", rich_help_panel=_WHERE)
    ] = False,
    **settings: Any,
) -> int:
    """Answer a file of requests, and write one line per request as answers come, in any order.

    Stop it at any time: the same command goes on where it was. Requests that name no model get the server's.
    The exit code is 0 if every line has an answer with status 200, and 1 otherwise.

    Examples:

      gradus batch in.jsonl out.jsonl                          # a server that runs here
      gradus batch in.jsonl out.jsonl --model qwen3-0.6b       # an engine of its own
      gradus batch in.jsonl out.jsonl --base-url https://gpu.lan --yes-this-server-is-mine
    """
    from gradus.load.asking.target import Target
    from gradus.load.batch.lines import read, resume
    from gradus.load.batch.sending import Counts, Rules

    _check("concurrency", concurrency, 1, MOST_AT_ONCE)
    _check("tries", tries, 1, 1000)
    _check("timeout", timeout, 0.001, 86_400)
    if settings and model is None:
        raise ConfigError(f"{next(iter(settings))} is of an engine of its own: add --model, or leave it out")
    if model is not None and base_url is not None:
        raise ConfigError("--model starts an engine, and --base-url names a server that runs: choose one of them")
    if answers.exists() and answers.samefile(requests):
        raise ConfigError(f"{answers} holds the requests: name another file for the answers")
    output = resume(answers)
    left = sum(1 for _ in output.without(read(requests)))
    rules = Rules(concurrency, tries, timeout)
    if not left:
        return _report(output, Counts())
    if model is not None:
        with _serving(settings | {"model": model}) as url:
            return _send(Target.at(url), requests, answers, output, left, rules)
    target = Target.at(base_url or URL, mine=yes_this_server_is_mine)
    target.ready()
    return _send(target, requests, answers, output, left, rules)


def _check(option: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise RequestError(f"--{option} must be {least:g} to {most:g}, got {value:g}", param=option, got=value)


def _send(target: "Target", requests: Path, answers: Path, output: "Output", left: int, rules: "Rules") -> int:
    """Send the lines that have no answer, and report the counts."""
    from gradus.cli.progress import Bars
    from gradus.load.batch.lines import read
    from gradus.load.batch.sending import Sending

    rules = replace(rules, at_once=min(rules.at_once, left), model=target.model())
    with _opened(answers) as out, Bars() as bars:
        bars.begin("answering", left)
        lines = output.without(read(requests))
        counts = Sending(target, lines, out, rules, lambda: bars.advance(1)).run()
    return _report(output, counts)


def _opened(answers: Path) -> BinaryIO:
    try:
        answers.parent.mkdir(parents=True, exist_ok=True)
        return answers.open("ab")
    except OSError as error:
        raise ConfigError(f"{answers} cannot be written: {error.strerror or error}") from error


def _report(output: "Output", counts: "Counts") -> int:
    """Print the counts of all lines, those of earlier runs included. Returns the exit code."""
    succeeded = output.succeeded + counts.succeeded
    failed = len(output.done) - output.succeeded + counts.failed
    invalid = len(output.invalid) + counts.invalid
    others = ((failed, "refused by the server"), (invalid, "no request"))
    parts = [f"{succeeded} answered", *(f"{count} {what}" for count, what in others if count)]
    terminal.print_text(" · ".join(parts) + "\n")
    if counts.left:
        terminal.print_mistake(f"{counts.left} without an answer ({counts.why}): the same command sends them again")
    return int(bool(failed or invalid or counts.left))


@contextmanager
def _serving(settings: dict[str, Any]) -> Iterator[str]:
    """Run a server of our own on a free port of this machine within the block. Raises what ended its loading."""
    extras.require("server", "gradus batch --model")
    from gradus.server.client import EngineClient
    from gradus.server.config import ServerConfig
    from gradus.server.serve import Server, bind

    class Silent(Server):
        """Says nothing about an address that only this process uses."""

        async def _announce(self, host: str, port: int) -> None:
            try:
                await self.client.loaded()
            except Exception as error:
                self.load_error, self.should_exit = error, True

    config = ServerConfig(port=0, log_level="warning", **settings)
    listening = bind(config)
    server = Silent(config, EngineClient(config, "gradus.cli.loading"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while server.client.state in ("loading", "starting") and thread.is_alive():
            time.sleep(LOOK_S)
        if server.load_error is not None:
            raise server.load_error
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
