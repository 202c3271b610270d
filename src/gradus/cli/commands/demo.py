"""`gradus demo`: see in a minute what a phase's idea changes."""

from pathlib import Path
from types import ModuleType
from typing import Annotated

from typer import Argument, Option

from gradus import phases
from gradus.cli import interpreted, terminal
from gradus.errors import ConfigError
from gradus.exercises.declaration import has_kernels

Out = Annotated[Path | None, Option("--out", "-o", help="Also write the chart to this file: .png or .svg.")]
Model = Annotated[
    str | None,
    Option(
        "--model",
        "-m",
        help="As in `gradus generate`. By default smollm2-135m, or random weights of its shape if it is not pulled; "
        "for p09 and p12 one of random weights.",
    ),
]


def demo(
    phase: Annotated[str, Argument(help="p01 to p06, p09, p11 to p14.")], out: Out = None, model: Model = None
) -> int:
    """Show what a phase's idea changes: the phase before, then the phase, on one small workload on this CPU.

    Takes about half a minute on two cores. For numbers to quote, there is gradus bench. p09 and p12 to p14
    have programs of their own: what kernels read, ranks at work, what blocks a server, and a crowd's experts.

    Examples:

      gradus demo p01
      gradus demo p06 --out chunks.png
      gradus demo p11                   # an answer without its form and with it, token by token
    """
    from gradus.bench import registry
    from gradus.bench.contenders.workbench import Workbench
    from gradus.cli.progress import Bars, working
    from gradus.course.views import charts, demos

    if (program := _program(phase)) is not None:
        _refuse_chart(phase, out)
        for line in program.show(model or getattr(program, "MODEL", None) or demos.usual_model()):
            _say(line)
        return 0
    wanted = demos.demo_of(phase)
    if out is not None:
        charts.check_drawable(out)
    chosen = model or demos.usual_model()
    if model is None and chosen != demos.REAL:
        terminal.print_note(
            f"{demos.REAL} is not pulled: random weights of its shape take the same time, and say nothing"
        )
    with Bars() as progress:
        bench = Workbench.open(chosen, "cpu", "auto", progress)
    names = {name: registry.title_of(name) for name in (wanted.before, wanted.phase)}
    _say(f"{names[wanted.before]}, then {names[wanted.phase]}, with {chosen}")
    _say(f"{wanted.question}\n{wanted.workload}.\n")
    shown = demos.run(wanted, bench, lambda name: working(f"{name} runs"))
    _say(charts.TEXTS[wanted.chart](shown.series, wanted.across, wanted.up))
    _say(f"\n{wanted.look}\n")
    if shown.transcript:
        _say(f"{shown.transcript}\n")
    terminal.print_table(["", *names, ""], [list(row) for row in shown.table])
    if out is not None:
        title = " and ".join(names.values())
        charts.draw(out, shown.series, title, wanted.across, wanted.up, wanted.chart)
        _say(f"\n{out}")
    return 0


def _program(phase: str) -> ModuleType | None:
    """The demo that a phase has as its module demo.py, instead of one of two engines."""
    found = next((one for one in phases.available() if phase in (one.name, one.folder)), None)
    if found is None or not found.has("demo"):
        return None
    if has_kernels(found):
        interpreted.ask()
    return found.module("demo")


def _refuse_chart(phase: str, out: Path | None) -> None:
    if out is not None:
        raise ConfigError(f"the demo of {phase} draws no chart: leave --out away")


def _say(text: str) -> None:
    terminal.print_text(f"{text}\n")
