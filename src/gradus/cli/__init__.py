"""The `gradus` command: its commands, and what becomes of a mistake.

Read in this order:

    options.py     options that several commands share;  settings_table.py: the same as a table of the docs
    layers.py      which options `--help` shows first
    terminal.py    what goes to stdout, to stderr and to files;  progress.py: a bar while work is long
    engine.py      a model loaded for a command;  loading.py: the same for a server
    generate.py, chat.py, serve.py, load.py, models.py (models, pull)
    exercises.py (exercise, check, solution, progress, diff, show, flat), xray.py (xray), demo.py (demo),
    museum.py (museum)
    course.py (phases)
    bench.py (bench, report, profile), health.py (doctor)

Exit codes: 0 all went well, 1 something failed, 2 the user's mistake (one line on stderr), 130 Ctrl-C. A traceback is
a defect of ours. Nothing here imports torch before a command needs it, so `--help` appears at once.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

import gradus
from gradus.cli import (
    bench,
    chat,
    course,
    demo,
    exercises,
    generate,
    health,
    load,
    models,
    museum,
    serve,
    terminal,
    xray,
)
from gradus.cli.layers import layered
from gradus.device.allocator import keep_freed_memory
from gradus.device.characters import accept_every_character
from gradus.device.threads import spin_briefly, stay_within_share
from gradus.errors import CapacityError, GradusError
from gradus.exercises.solution import blamed

_MODEL = ("model", "phase", "device", "quantize")

app = typer.Typer(
    name="gradus",
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FIRST = {
    "generate": layered(*_MODEL, "max_tokens", "temperature", "seed", "n", "stop", "json"),
    "chat": layered(*_MODEL, "context_length", "system", "max_tokens", "temperature", "seed"),
    "serve": layered(*_MODEL, "context_length", "max_sequences", "host", "port", "config", "dry_run"),
}
"""Commands with more options than a first call needs, and which those are."""

for command, panel in (
    (generate.generate, "Use a model"),
    (chat.chat, "Use a model"),
    (serve.serve, "Use a model"),
    (load.load, "Use a model"),
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
    (course.phases, "Look around"),
    (health.doctor, "Look around"),
):
    app.command(rich_help_panel=panel, cls=FIRST.get(command.__name__))(command)


@app.callback(invoke_without_command=True)
def gradus_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """An LLM inference engine built one optimization at a time: a course, and a server.

    Start here:

      gradus pull smollm2-135m              # a small real model (98 MB)
      gradus generate "Once upon a time"    # its text, as it comes
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
    """Run one command; returns the exit code.

    arguments: without the program's name. None takes the process's own: then the process is the command line's, and so
    are its streams, its threads, how many and the way in which they wait, and its allocator.
    """
    if arguments is None:
        accept_every_character()
        keep_freed_memory(os.environ)
        spin_briefly(os.environ)
        stay_within_share(os.environ)
    try:
        return app(args=arguments, prog_name="gradus", standalone_mode=False) or 0
    except TyperException as mistake:
        terminal.print_mistake(mistake.format_message())
        return getattr(mistake, "exit_code", 2)
    except CapacityError as refusal:
        terminal.print_mistake(str(refusal))
        return 1
    except GradusError as mistake:
        terminal.print_mistake(str(mistake))
        return 2
    except Exception as error:
        own = blamed(error)  # a student's file under --impl
        if own is None:
            raise
        terminal.print_mistake(f"{own} (`gradus check` says what the phase expects)")
        return 1
    except (KeyboardInterrupt, Abort):
        print(file=sys.stderr)
        return 130
