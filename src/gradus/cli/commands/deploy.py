"""`gradus deploy`: replicas of the server on Ray Serve, and a runner for an engine in another process."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from gradus import extras
from gradus.cli import options, terminal
from gradus.config.settings import NEITHERS, THE_ENGINES, Settings
from gradus.errors import ConfigError
from gradus.server.config import ServerConfig

deploy = typer.Typer(help="Serve a model with several replicas, or run it for another process.", no_args_is_help=True)

_REPLICAS = "Replicas"


@deploy.callback()
def about() -> None:
    """Serve a model with several replicas, or run it for another process."""


@deploy.command("ray")
@options.settings_of(ServerConfig, without=("tls_cert", "tls_key", "models", "max_loaded"))
def ray(
    replicas: Annotated[int, Option(help="Replicas, each with an engine of its own.", rich_help_panel=_REPLICAS)] = 1,
    max_replicas: Annotated[
        int | None,
        Option(help="Add replicas up to this number while requests wait.", rich_help_panel=_REPLICAS),
    ] = None,
    gpus: Annotated[
        float,
        Option("--gpus-per-replica", help="GPUs for each replica; with 0 it sees none.", rich_help_panel=_REPLICAS),
    ] = 0.0,
    max_imbalance: Annotated[
        int,
        Option(
            help="Prefer replicas that know a prompt's beginning until one has this many more requests than another.",
            rich_help_panel=_REPLICAS,
        ),
    ] = 16,
    fronts: Annotated[
        int, Option(help="Processes that clients connect to, all at one address.", rich_help_panel=_REPLICAS)
    ] = 1,
    config: Annotated[
        Path | None, Option("--config", "-c", help="A YAML file of settings; options on the command line override it.")
    ] = None,
    **given: Any,
) -> int:
    """Serve a model with several replicas on Ray Serve, until Ctrl-C or SIGTERM. Needs `pip install -e '.[ray]'`.

    Examples:

      gradus deploy ray --replicas 2
      gradus deploy ray --replicas 2 --max-replicas 4 --gpus-per-replica 1 --model ./qwen3-8b
    """
    extras.require("ray", "gradus deploy ray")
    from gradus.deploy.run import Plan
    from gradus.deploy.run import deploy as run

    settings = (ServerConfig.from_yaml(config) if config else ServerConfig()).merge(given)
    if settings.models:
        raise ConfigError("gradus deploy serves one model: name one, and deploy the others on their own")
    plan = Plan(settings, replicas, max_replicas, gpus, max_imbalance, fronts)
    terminal.print_note(f"starting {replicas} replicas of {settings.model}")
    return run(plan)


@deploy.command("runner")
@options.settings_of(without=(*THE_ENGINES, *NEITHERS))
def runner(
    socket: Annotated[Path, Option(help="The Unix socket to listen at; only this user may connect.")],
    **given: Any,
) -> int:
    """Run a model for an engine in another process, which names it by --runner unix:/path, until Ctrl-C or SIGTERM.

    The settings of memory and arithmetic belong here, those of order and time limits to the engine. For an engine on
    another machine, forward the socket: ssh -N -L /there.sock:/here.sock HOST

    Examples:

      gradus deploy runner --socket /tmp/gradus.sock --model random:tiny-llama
      gradus serve --runner unix:/tmp/gradus.sock --model random:tiny-llama
    """
    from gradus.cli.progress import Bars
    from gradus.deploy.runner import run

    settings = Settings.of(given)
    with Bars() as progress:
        run(settings, socket, progress)
    return 0
