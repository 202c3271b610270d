"""`gradus serve`: options become a ServerConfig; a dry run shows the memory that serving would take."""

import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from gradus import extras
from gradus.cli import options, terminal
from gradus.errors import GradusError, RequestError
from gradus.server.config import ServerConfig

log = logging.getLogger(__name__)


@options.settings_of(ServerConfig, without=("model",))  # `models` has its flags
def serve(
    config: Annotated[
        Path | None, Option("--config", "-c", help="A YAML file of settings; options on the command line override it.")
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Check everything, show the memory it would take, and exit without serving.")
    ] = False,
    json: Annotated[bool, Option("--json", help="With --dry-run: JSON on stdout, for programs.")] = False,
    **given: Any,
) -> int:
    """Serve a model over HTTP, until Ctrl-C or SIGTERM.

    On loopback no key is needed. Elsewhere, give API keys: a file that `gradus keys add` writes, or GRADUS_API_KEY.

    Examples:

      gradus serve
      gradus serve --model gemma3-270m --port 9000
      gradus serve --config configs/cpu.yaml --dry-run    # where the memory would go
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
    settings = (ServerConfig.from_yaml(config) if config else ServerConfig()).merge(given)
    if dry_run:
        _plan(settings, json)
        return 0
    if json:
        raise RequestError("--json goes with --dry-run: a server's answers are JSON anyway", param="json")
    from gradus.server.serve import serve as run

    try:
        return run(settings, loader="gradus.cli.loading")
    except GradusError as mistake:
        if settings.log_format != "json":
            raise
        log.error("%s", mistake)
        return 2


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
