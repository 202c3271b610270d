"""`gradus bench`, `gradus report`, `gradus profile`: measure, report, take a step apart."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from gradus.bench import command
from gradus.cli import options
from gradus.errors import ConfigError

MODEL = ("model", "device", "dtype", "quantize")
_WHAT, _SCHEDULER = "What is measured", "For `gradus bench scheduler` only"

Target = Annotated[
    str,
    Argument(
        help="A phase (p01), ladder, ablation, matrix, cpu-decode, all, sampling, quality, or scheduler (simulated: no "
        "model is loaded)."
    ),
]
Out = Annotated[
    Path | None, Option("--out", "-o", help=f"The folder for results; {command.OWN_REPORTS}/ by default.")
]  # never the repository's own reports, unless they are named


Impl = Annotated[
    Path | None,
    Option(
        help="A folder or file with your functions: your phases get rows next to the course's.",
        metavar="DIR",
        rich_help_panel=_WHAT,
    ),
]
Peers = Annotated[
    bool, Option("--peers/--no-peers", help="Also run transformers on the same workload.", rich_help_panel=_WHAT)
]
Repeats = Annotated[
    int | None, Option(help="Runs of each contender; 5 by default, 3 for slow ones.", rich_help_panel=_WHAT)
]
Tables = Annotated[
    list[str] | None, Option(help="Only this table of the benchmark; may be repeated.", rich_help_panel=_WHAT)
]
Contenders = Annotated[
    list[str] | None, Option(help="Only this contender, as in p01; may be repeated.", rich_help_panel=_WHAT)
]
Resume = Annotated[
    bool, Option("--resume", help="Skip runs that this commit has measured there already.", rich_help_panel=_WHAT)
]
Text = Annotated[
    Path | None,
    Option(
        help="The text to read: UTF-8, documents divided by form feeds. The lessons and the documentation by default.",
        rich_help_panel="For `gradus bench quality` only",
    ),
]
Requests = Annotated[int | None, Option(help="Number of requests; 10,000 by default.", rich_help_panel=_SCHEDULER)]
Batches = Annotated[
    list[int] | None,
    Option(help="Sequences that run at once; may be repeated. 32 and 256 by default.", rich_help_panel=_SCHEDULER),
]


@options.settings_of(only=MODEL)
@options.settings_of(only=("policy",), panel=_SCHEDULER)
def bench(
    target: Target,
    quick: Annotated[
        bool,
        Option("--quick", help="Short workloads, under a minute on two idle cores. Numbers not to quote."),
    ] = False,
    out: Out = None,
    impl: Impl = None,
    peers: Peers = True,
    repeats: Repeats = None,
    table: Tables = None,
    contender: Contenders = None,
    resume: Resume = False,
    text: Text = None,
    requests: Requests = None,
    batch: Batches = None,
    **settings: Any,
) -> int:
    """Measure a phase against the ones before it, and write results, report and figures.

    Every contender gets the same token ids. Each is built once and warmed up, and then they take turns. The report
    compares medians with what the roofline predicts for this machine; its path goes to stdout.

    Examples:

      gradus bench p01 --quick
      gradus bench p01 --impl exercises         # with your own p01 among them
      gradus bench ladder --quantize int8
      gradus bench all --device cuda --model random:llama-3.2-1b --dtype bfloat16
      gradus bench p02 --table batch-size --resume
      gradus bench sampling --model random:smollm2-135m
      gradus bench quality --model smollm2-135m --text book.txt
      gradus bench scheduler --requests 1000 --batch 64 --policy priority
    """
    if target == "scheduler":
        others = (any(name in settings for name in MODEL), not peers, repeats, table, contender, resume, text, impl)
        if any(others):
            raise ConfigError("`gradus bench scheduler` loads no model: it takes --requests, --batch, --policy")
        command.bench_scheduler(requests=requests, batches=tuple(batch or ()), out=out, quick=quick, **settings)
        return 0
    if requests is not None or batch or "policy" in settings:
        raise ConfigError(f"--requests, --batch and --policy are for `gradus bench scheduler`, not for {target}")
    command.bench(
        target,
        out=out,
        quick=quick,
        peers=peers,
        repeats=repeats,
        resume=resume,
        tables=tuple(table or ()),
        contenders=tuple(contender or ()),
        text=text,
        impl=impl,
        **settings,
    )
    return 0


def report(
    root: Annotated[Path | None, Argument(help="A folder of results; the repository's own by default.")] = None,
    check: Annotated[bool, Option("--check", help="Change nothing; fail if anything is outdated.")] = False,
) -> int:
    """Regenerate reports, figures and the lessons' tables, from results.json alone.

    Examples:

      gradus report
      gradus report my-reports
      gradus report --check
    """
    stale = command.report(root, check=check)
    return int(check and stale > 0)


@options.settings_of(only=MODEL)
def profile(
    phase: Annotated[str, Argument(help="A phase of the course, as in p01, or final.")],
    context: Annotated[int, Option(help="Tokens in the cache before the decode steps.")] = 256,
    batch: Annotated[int, Option(help="Sequences at once.")] = 1,
    out: Out = None,
    **settings: Any,
) -> int:
    """Show where a decode step's time goes: kernels, launches, the host. Writes a timeline for Perfetto.

    Examples:

      gradus profile p01
      gradus profile p03 --batch 8 --context 512 --device cuda
    """
    command.profile(phase, context=context, batch=batch, out=out, **settings)
    return 0
