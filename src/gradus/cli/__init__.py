"""The `gradus` command: its subcommands, and how it reports mistakes.

Read in this order:

    options.py     options that several commands share;  settings_table.py: the same as a table of the docs
    layers.py      help at once, and the options that it shows first
    terminal.py    output to stdout, stderr and files;  progress.py: a bar during long work
    engine.py      a model loaded for a command;  loading.py: the same for a server
    interpreted.py    a phase's kernels where there is no GPU: interpreted, and counted
    memory.py      a plan of its memory, shown;  families.py: the families that load, and what their shapes cost
    explain.py     what a model needs and reaches on a card
    commands/      one module for each group of commands

Exit codes: 0 success, 1 a failure, 2 a mistake of the user's (one line on stderr), 130 Ctrl-C. A traceback is
a bug of ours. Nothing here imports torch before a command needs it, so `--help` appears at once.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

import gradus
from gradus.cli import terminal
from gradus.cli.commands import (
    bench,
    chat,
    course,
    demo,
    deploy,
    exercises,
    generate,
    health,
    keys,
    models,
    museum,
    serve,
    speedrun,
    xray,
)
from gradus.cli.commands.clients import batch, load
from gradus.cli.layers import Command, Group, layered
from gradus.device.allocator import keep_freed_memory
from gradus.device.characters import accept_every_character
from gradus.device.threads import spin_briefly, stay_within_share
from gradus.errors import CapacityError, GradusError

_MODEL = ("model", "phase", "device", "quantize")

app = typer.Typer(
    name="gradus",
    cls=Group,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FIRST = {
    "generate": layered(*_MODEL, "max_tokens", "temperature", "seed", "n", "stop", "json"),
    "chat": layered(*_MODEL, "context_length", "system", "max_tokens", "temperature", "seed"),
    "batch": layered("model", "device", "quantize", "base_url", "concurrency"),
    "load": layered(
        "requests", "prompt_tokens", "max_tokens", "request_rate", "max_concurrency", "base_url", "goodput", "find_rate"
    ),
    "speedrun": layered("phase", "impl", "command", "peer", "verify", "name", "device"),
    "serve": layered("models", *_MODEL[1:], "context_length", "max_sequences", "host", "port", "config", "dry_run"),
}
"""Commands with more options than a first call needs, and the options that `--help` shows first."""

for command, panel in (
    (generate.generate, "Use a model"),
    (chat.chat, "Use a model"),
    (serve.serve, "Use a model"),
    (load.load, "Use a model"),
    (batch.batch, "Use a model"),
    (models.models, "Get a model"),
    (models.pull, "Get a model"),
    (models.quantize, "Get a model"),
    (models.train_heads, "Get a model"),
    (exercises.exercise, "Follow the course"),
    (exercises.check, "Follow the course"),
    (exercises.solution, "Follow the course"),
    (exercises.progress, "Follow the course"),
    (exercises.diff, "Follow the course"),
    (exercises.show, "Follow the course"),
    (exercises.flat, "Follow the course"),
    (xray.xray, "Follow the course"),
    (demo.demo, "Follow the course"),
    (museum.museum, "Follow the course"),
    (bench.bench, "Measure"),
    (bench.report, "Measure"),
    (bench.profile, "Measure"),
    (speedrun.speedrun, "Measure"),
    (course.phases, "Look around"),
    (health.doctor, "Look around"),
):
    app.command(rich_help_panel=panel, cls=FIRST.get(command.__name__, Command))(command)

INSTEAD = {
    "--api-key": "--api-key, whose value every user of the machine could read: set GRADUS_API_KEY in the environment, "
    "or name a file of keys with --api-keys",
    "--ignore-eos": "--ignore-eos here: answers have exactly the length asked for, unless --stop-at-eos is given",
}
"""Options of other servers → what to do here."""

app.add_typer(keys.keys, name="keys", rich_help_panel="Use a model")
app.add_typer(deploy.deploy, name="deploy", rich_help_panel="Use a model")


@app.callback(invoke_without_command=True)
def gradus_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """An LLM inference engine built one optimization at a time: a course, and a server.

    Start here:

      gradus pull smollm2-135m              # a small real model (98 MB)
      gradus generate "Once upon a time"    # continue a text
      gradus chat                           # talk to it
      gradus serve                          # serve it on http://127.0.0.1:8000
      gradus phases                         # the course's chapters
      gradus doctor                         # what works on this machine

    Each command explains itself: gradus generate --help
    """
    if version:
        print(f"gradus {gradus.__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit code.

    arguments: without the program's name; None takes the process's own. Then the process belongs to the command line,
    which sets up its streams, the number of its threads and their way of waiting, and its allocator.
    """
    if arguments is None:
        accept_every_character()
        keep_freed_memory(os.environ)
        spin_briefly(os.environ)
        stay_within_share(os.environ)
    code = _run(arguments)
    if arguments is None:
        code = _end_streams(code)
    return code


def _end_streams(code: int) -> int:
    """Flush both streams. Returns the exit code, or a failure's if stdout cannot be written."""
    try:
        terminal.flush_stdout()
    except OSError as error:
        terminal.give_up(sys.stdout)
        if code == 0 and (reason := terminal.lack_of(error)):
            terminal.print_mistake(reason)
        code = code or 1
    try:
        print(end="", file=sys.stderr, flush=True)
    except OSError:
        terminal.give_up(sys.stderr)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    """Run one command. Mistakes, and what the machine lacks, are reported in one line."""
    try:
        return app(args=arguments, prog_name="gradus", standalone_mode=False) or 0
    except TyperException as mistake:
        instead = INSTEAD.get(getattr(mistake, "option_name", ""))
        terminal.print_mistake(f"there is no {instead}" if instead else mistake.format_message())
        return getattr(mistake, "exit_code", 2)
    except CapacityError as refusal:
        terminal.print_mistake(str(refusal))
        return 1
    except GradusError as mistake:
        terminal.print_mistake(str(mistake))
        return 2
    except Exception as error:
        from gradus.exercises.solution import blamed

        own = blamed(error)  # a student's file under --impl
        reason = terminal.lack_of(error) if own is None else f"{own} (`gradus check` says what the phase expects)"
        if reason is None:
            raise
        terminal.print_mistake(reason)
        return 1
    except (KeyboardInterrupt, Abort):
        with suppress(OSError):
            print(file=sys.stderr)
        return 130
