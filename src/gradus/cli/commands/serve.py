"""`gradus serve`: options become a ServerConfig; a dry run shows the memory that serving would take, and --explain what
a model would reach."""

import logging
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from gradus import extras
from gradus.cli import options, terminal
from gradus.errors import GradusError, RequestError
from gradus.server.config import ServerConfig

log = logging.getLogger(__name__)

_EXPLAIN = "With --explain"
Explain = Annotated[
    str | None,
    Option(
        "--explain",
        metavar="MODEL",
        help="Say what this model needs and reaches on a device, and the command that serves it; serve nothing.",
    ),
]
CardName = Annotated[
    str | None,
    Option("--card", help=f"{_EXPLAIN}: a GPU that need not be here, such as h200, l40s or rtx4090."),
]
Objective = Annotated[
    str | None, Option("--objective", help=f"{_EXPLAIN}: the most milliseconds, as in ttft:200,tpot:20.")
]
PerRequest = Annotated[
    str | None, Option("--request", help=f"{_EXPLAIN}: a request's tokens in and out; 1024,256 by default.")
]


@options.settings_of(ServerConfig, without=("model",))  # `models` has its flags
def serve(
    config: Annotated[
        Path | None, Option("--config", "-c", help="A YAML file of settings; options on the command line override it.")
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Check everything, show the memory it would take, and exit without serving.")
    ] = False,
    explain: Explain = None,
    card: CardName = None,
    objective: Objective = None,
    request: PerRequest = None,
    json: Annotated[bool, Option("--json", help="With --dry-run or --explain: JSON on stdout, for programs.")] = False,
    **given: Any,
) -> int:
    """Serve a model over HTTP, until Ctrl-C or SIGTERM.

    On loopback no key is needed. Elsewhere, give API keys: a file that `gradus keys add` writes, or GRADUS_API_KEY.

    Examples:

      gradus serve
      gradus serve --model gemma3-270m --port 9000
      gradus serve --config configs/cpu.yaml --dry-run    # where the memory would go
      gradus serve --explain random:llama-3.1-8b --card l40s --objective ttft:500,tpot:50
      gradus serve --model ./mine.gguf --served-model-name mine gpt-4o-mini --temperature 0.3
      gradus serve --model small=smollm2-135m --model code=qwen2.5-coder-0.5b    # loaded by turns
      gradus serve --sleep-after 600    # an idle engine's memory is free after ten minutes
      gradus serve --memory-fraction 0.6 --max-context 8192
      gradus serve --impl exercises/p03    # your own phase behind HTTP
      gradus serve --allowed-host gradus.lan    # behind a proxy of that name
      gradus serve --host 0.0.0.0 --api-keys keys.yaml --tls-cert cert.pem --tls-key key.pem
      gradus serve --max-sequences 64 --cache-tokens 100000 --policy priority
      curl http://127.0.0.1:8000/    # lists the routes
    """
    extras.require("server", "gradus serve")
    settings = _settings(config, explain, given)
    if explain is not None:
        _explain(settings, card, objective, request, json)
        return 0
    _refuse_alone(card=card, objective=objective, request=request, json=json and not dry_run)
    if dry_run:
        _plan(settings, json)
        return 0
    from gradus.cli.progress import SOON_S, working

    with nullcontext() if settings.log_format == "json" else working("starting", SOON_S):  # its lines are no JSON
        from gradus.server.serve import serve as run

    try:
        return run(settings, loader="gradus.cli.loading")
    except GradusError as mistake:
        if settings.log_format != "json":
            raise
        log.error("%s", mistake)
        return 2


def _settings(config: Path | None, explain: str | None, given: dict[str, Any]) -> ServerConfig:
    """Merge the file's settings and the options. Raises ConfigError, also for an extra that they need."""
    if explain is not None:
        if given.get("models"):
            raise RequestError("--explain names the model: leave --model out", param="explain")
        given["models"] = (explain,)
    settings = (ServerConfig.from_yaml(config) if config else ServerConfig()).merge(given)
    if settings.otlp_traces_endpoint is not None:
        extras.require("otel", "--otlp-traces-endpoint")
    return settings


def _refuse_alone(*, json: bool, **options: str | None) -> None:
    """Raise RequestError for an option that means something only next to another one."""
    for name, value in options.items():
        if value is not None:
            raise RequestError(f"--{name} goes with --explain MODEL", param=name)
    if json:
        raise RequestError("--json goes with --dry-run and --explain: a server's answers are JSON anyway", param="json")


def _plan_each(settings: ServerConfig, json: bool) -> None:
    """Show the memory of each of several models, as if it were the first to be loaded."""
    from gradus.cli.memory import as_dict, render
    from gradus.loading import open_checkpoint
    from gradus.server.engine.loading import planned

    plans = {}
    for each in settings.each():
        part = replace(each, share=(1, settings.max_loaded))
        plans[each.names[0]] = planned(part, open_checkpoint(each.model))[0]
    if json:
        memory = {name: as_dict(plan) for name, plan in plans.items()}
        terminal.print_json({"settings": asdict(settings), "models": memory})
        return
    for name, plan in plans.items():
        terminal.print_text(f"{'model':<20}{name}\n{render(plan)}\n\n")


def _plan(settings: ServerConfig, json: bool) -> None:
    """Show the memory that serving would take, without reading any weights. Raises the same errors as serving."""
    from gradus.cli.memory import as_dict, render
    from gradus.config.options import FINAL
    from gradus.exercises import solution
    from gradus.loading import open_checkpoint
    from gradus.server.engine.loading import planned
    from gradus.server.http.tls import tls_options
    from gradus.server.serve import bind

    bind(settings).close()
    tls_options(settings)
    if settings.impl is not None and settings.phase is not None:
        terminal.print_note(solution.load(settings.phase, Path(settings.impl)).note)
    if settings.models:
        _plan_each(settings, json)
        return
    checkpoint = open_checkpoint(settings.model)
    memory, draft = planned(settings, checkpoint)
    if json:
        model = {"name": checkpoint.name, "family": checkpoint.config.family, "license": checkpoint.license}
        names = {"engine": settings.phase or FINAL, "phase": settings.phase}
        told = {"settings": asdict(settings), "model": model, "draft": draft, **names, "memory": as_dict(memory)}
        terminal.print_json(told)
        return
    engine = f"phase {settings.phase}" if settings.phase else FINAL
    terminal.print_text(
        f"{'model':<20}{checkpoint.name} ({checkpoint.config.family}), license {checkpoint.license}\n"
        + (f"{'draft':<20}{draft['name']}, {draft['dtype']}\n" if draft else "")
        + f"{'engine':<20}{engine}\n"
        f"{render(memory)}\n"
        f"{'would listen at':<20}http://{settings.host}:{settings.port}\n"
    )


def _explain(settings: ServerConfig, card: str | None, objective: str | None, use: str | None, json: bool) -> None:
    """Show what the model needs and reaches. Raises ConfigError if it does not fit, saying what would."""
    from gradus.bench.sizing.estimate import Objective
    from gradus.cli import explain

    found = explain.explain(settings, card, objective, use)
    made = explain.as_dict(found, None if objective is None else Objective.of(objective))
    if json:
        terminal.print_json(made)
    else:
        terminal.print_text(explain.render(made, found.plan) + "\n")
