"""`gradus keys`: make, list and revoke the API keys of a server."""

import datetime
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gradus.cli import terminal
from gradus.errors import ConfigError
from gradus.server.config import KeyLimits
from gradus.server.http.keys import LIMITS, NAME, Key, Role, check_priority, digest_of, new_key, read_keys, write_keys

keys = typer.Typer(help="Make, list and revoke the API keys of a server.", no_args_is_help=True)

KeyName = Annotated[
    str, Argument(metavar="NAME", help="Its owner's name, for the log and /metrics.", show_default=False)
]
KeyFile = Annotated[Path, Option("--file", "-f", help="The file that `gradus serve --api-keys` reads.")]


@keys.command()
def add(
    name: KeyName,
    file: KeyFile,
    role: Annotated[
        Role, Option(help="client: all but the statistics; monitor: /stats and /metrics alone; admin: both.")
    ] = "client",
    max_samples: Annotated[int | None, Option(help="Most samples at once, running or waiting.")] = None,
    max_waiting: Annotated[int | None, Option(help="Most samples that may wait for their first token.")] = None,
    tokens_per_minute: Annotated[int | None, Option(help="Most tokens of prompts and answers per minute.")] = None,
    best_priority: Annotated[
        int | None, Option(help="Lowest `priority` of its requests. By default 0; -1000 for the role admin.")
    ] = None,
) -> int:
    """Make a key, and print it once: the file keeps only its hash.

    A running server accepts it within a second.

    Examples:

      gradus keys add alice --file keys.yaml
      gradus keys add batch --file keys.yaml --max-samples 8 --tokens-per-minute 100000
      gradus keys add prometheus --file keys.yaml --role monitor
    """
    known = read_keys(file) if file.exists() else {}
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"a name has 1 to 64 of a-z, 0-9, '.', '_' and '-', and begins with a letter or digit: {name!r}"
        )
    if name in known:
        raise ConfigError(f"{file} has a key {name!r} already; `gradus keys remove {name} --file {file}` revokes it")
    for limit, value in zip(LIMITS, (max_samples, max_waiting, tokens_per_minute), strict=True):
        if value is not None and value < 1:
            raise ConfigError(f"{limit} must be a whole number, 1 or more, got {value}")
    check_priority("", best_priority)
    key = new_key()
    limits = KeyLimits(max_samples, max_waiting, tokens_per_minute)
    created = datetime.datetime.now(datetime.UTC).date().isoformat()
    write_keys(file, known | {name: Key(name, digest_of(key), role, limits, created, best_priority)})
    print(key)
    if sys.stdout.isatty():
        terminal.print_note(f"This is the key of {name}. It is shown only now: {file} has its hash.")
    return 0


@keys.command("list")
def show(file: KeyFile) -> int:
    """List the keys of a file: names, roles and limits.

    Examples:

      gradus keys list --file keys.yaml
    """
    rows = []
    for key in read_keys(file).values():
        limits = [str(getattr(key.limits, limit) or "") for limit in LIMITS]
        rows.append([key.name, key.role, key.created, *limits, str(key.first_priority)])
    columns = [name.replace("_", " ") for name in (*LIMITS, "best_priority")]
    terminal.print_table(["name", "role", "created", *columns], rows)
    return 0


@keys.command()
def remove(name: KeyName, file: KeyFile) -> int:
    """Revoke a key. A running server refuses it within a second.

    Examples:

      gradus keys remove alice --file keys.yaml
    """
    known = read_keys(file)
    if name not in known:
        raise ConfigError(f"{file} has no key {name!r}; it has {', '.join(known) or 'none'}")
    write_keys(file, {other: key for other, key in known.items() if other != name})
    return 0
