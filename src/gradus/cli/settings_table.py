"""The tables of settings in docs/serving.md: `python -m gradus.cli.settings_table` prints them."""

from gradus import phases
from gradus.config.description import Setting, described
from gradus.config.options import SWITCHES
from gradus.config.settings import heeded
from gradus.server.config import ServerConfig


def settings_table() -> str:
    """One row per setting of a server: key, default, and what it is."""
    rows = (
        f"| `{name}` | {one.by_default} | {one.help}{_engines(one)} |" for name, one in described(ServerConfig).items()
    )
    return "\n".join(["| key | default | |", "|---|---|---|", *rows])


def switches_table() -> str:
    """One row per optimization that `switch_off` leaves out."""
    rows = (f"| `{name}` | {one.help} |" for name, one in SWITCHES.items())
    return "\n".join(["| optimization | |", "|---|---|", *rows])


def _engines(setting: Setting) -> str:
    """Which engines heed it, where not all do: the phases that name it, or the final engine alone."""
    if setting.heeded == "all":
        return ""
    names = [phase.name for phase in phases.available() if setting.name in heeded(phase.name)]
    return f" ({', '.join([*names, 'the final engine'])})"


if __name__ == "__main__":
    print(f"{switches_table()}\n\n{settings_table()}")
