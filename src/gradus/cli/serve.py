"""`gradus serve`: options to a ServerConfig, and what serving it would take."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from gradus.cli import options, terminal
from gradus.errors import RequestError

if TYPE_CHECKING:
    from gradus.execution.memory import MemoryPlan
    from gradus.execution.sizing import EnginePlan
    from gradus.models.config import ModelConfig
    from gradus.server.config import ServerConfig

_WHERE, _LIMITS, _CACHE = "Where", "Limits", "Cache and scheduling (in phases that use them)"


def serve(
    model: options.ModelOrNone = None,
    phase: options.Phase = None,
    device: options.DeviceOrNone = None,
    dtype: options.DtypeOrNone = None,
    context_length: options.ContextLength = None,
    max_sequences: Annotated[
        int | None,
        Option(
            help="Most sequences that run at once, in phases that batch; 8 by default, and 256 with the final engine "
            "on a GPU.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    page_size: Annotated[
        int | None, Option(help="Tokens in a page of the cache; 16 by default.", rich_help_panel=_CACHE)
    ] = None,
    cache_tokens: Annotated[
        int | None,
        Option(
            help="Tokens that the whole cache has room for; by default --max-sequences of the longest, in the final "
            "engine as far as --memory-fraction allows.",
            rich_help_panel=_CACHE,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        Option(help="Who goes first: fcfs (as they came), priority or deadline.", rich_help_panel=_CACHE),
    ] = None,
    token_budget: Annotated[
        int | None,
        Option(help="Most tokens a step: longer prompts are cut into chunks.", rich_help_panel=_CACHE),
    ] = None,
    memory_fraction: options.MemoryFraction = None,
    switch_off: options.SwitchOff = None,
    config: Annotated[
        Path | None, Option("--config", "-c", help="A YAML file of settings; the options here win over it.")
    ] = None,
    host: Annotated[
        str | None, Option(help="The address to listen on; 127.0.0.1 by default.", rich_help_panel=_WHERE)
    ] = None,
    port: Annotated[
        int | None, Option(help="The port; 8000 by default, 0 takes a free one.", rich_help_panel=_WHERE)
    ] = None,
    max_waiting: Annotated[
        int | None, Option(help="Most samples that may wait for the engine; beyond, 503.", rich_help_panel=_LIMITS)
    ] = None,
    request_timeout: Annotated[
        float | None, Option(help="Most seconds for one request, its wait included.", rich_help_panel=_LIMITS)
    ] = None,
    drain_timeout: Annotated[
        float | None,
        Option(help="Seconds that requests under way get to end after SIGTERM.", rich_help_panel=_LIMITS),
    ] = None,
    log_level: Annotated[str | None, Option(help="debug, info, warning or error.")] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Check everything, show what it would take, and leave without serving.")
    ] = False,
    json: Annotated[bool, Option("--json", help="With --dry-run: JSON on stdout, for programs.")] = False,
) -> int:
    """Serve a model over HTTP, until Ctrl-C or SIGTERM.

    There is no authentication yet: keep to loopback, or put a proxy that authenticates in front.

    Examples:

      gradus serve
      gradus serve --model gemma3-270m --port 9000
      gradus serve --config configs/cpu.yaml --dry-run    where the memory would go
      gradus serve --memory-fraction 0.6 --max-context 8192
      gradus serve --max-sequences 64 --cache-tokens 100000 --policy priority
      curl http://127.0.0.1:8000/    what is where
    """
    from gradus.server.config import ServerConfig

    settings = (ServerConfig.from_yaml(config) if config else ServerConfig()).merge(
        {
            "model": model,
            "phase": phase,
            "device": device,
            "dtype": dtype,
            "context_length": context_length,
            "max_sequences": max_sequences,
            "page_size": page_size,
            "cache_tokens": cache_tokens,
            "policy": policy,
            "token_budget": token_budget,
            "memory_fraction": memory_fraction,
            "switch_off": switch_off,
            "host": host,
            "port": port,
            "max_waiting": max_waiting,
            "request_timeout": request_timeout,
            "drain_timeout": drain_timeout,
            "log_level": log_level,
        }
    )
    if dry_run:
        _plan(settings, json)
        return 0
    if json:
        raise RequestError("--json goes with --dry-run: a server's answers are JSON anyway", param="json")
    from gradus.server.serve import serve as run

    return run(settings, loader="gradus.cli.loading")


def _plan(settings: "ServerConfig", json: bool) -> None:
    """Show what serving would take, found out without reading a weight. Raises what serving would raise."""
    from gradus.config.options import FINAL
    from gradus.loading import open_checkpoint
    from gradus.server.serve import bind

    bind(settings).close()
    checkpoint = open_checkpoint(settings.model)
    memory = _memory(settings, checkpoint.config)
    if json:
        model = {"name": checkpoint.name, "family": checkpoint.config.family, "license": checkpoint.license}
        names = {"engine": settings.phase or FINAL, "phase": settings.phase}
        terminal.print_json({"settings": asdict(settings), "model": model, **names, "memory": memory.as_dict()})
        return
    engine = f"phase {settings.phase}" if settings.phase else FINAL
    terminal.print_text(
        f"{'model':<20}{checkpoint.name} ({checkpoint.config.family}), license {checkpoint.license}\n"
        f"{'engine':<20}{engine}\n"
        f"{memory.render()}\n"
        f"{'would listen at':<20}http://{settings.host}:{settings.port}\n"
    )


def _memory(settings: "ServerConfig", config: "ModelConfig") -> "MemoryPlan | EnginePlan":
    from gradus.config.options import resolve_context
    from gradus.config.phase_options import capacity, final_options, options_for, used_by
    from gradus.engine.request import ModelLimits
    from gradus.execution.memory import memory_plan
    from gradus.execution.sizing import planned
    from gradus.models.precision import resolve_device, resolve_precision

    length = resolve_context(settings.context_length, config.context_length)
    limits = ModelLimits(config.vocab_size, length)
    names = ("page_size", "cache_tokens", "policy", "token_budget", "memory_fraction", "switch_off")
    given = {name: getattr(settings, name) for name in names}
    if settings.phase is None:
        device = resolve_device(settings.device)
        final = final_options(limits, device.type, settings.max_sequences, **given)
        return planned(config, final, device, resolve_precision(settings.dtype, device, config))
    options = options_for(settings.phase, limits, settings.max_sequences, **given)
    return memory_plan(
        config,
        device=settings.device,
        dtype=settings.dtype,
        context_length=length,
        phase_capacity=capacity(settings.phase, options.max_sequences),
        paging=options if "page_size" in used_by(settings.phase) else None,
    )
