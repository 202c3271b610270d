"""The tables of settings in docs/serving.md: `python -m gradus.cli.settings_table docs/serving.md` renews them."""

import re
import sys
from pathlib import Path

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
    if setting.heeded == "phase":
        return " (phases)"
    names = [phase.name for phase in phases.available() if setting.name in heeded(phase.name)]
    return f" ({', '.join([*names, 'the final engine'])})"


def renewed(page: str) -> str:
    """The page with its tables of settings as they should be. A table ends at the first blank line."""
    for table in (switches_table(), settings_table()):
        header = re.escape(table.splitlines()[0])
        page = re.sub(rf"^{header}\n(\|.*\n)+", table.replace("\\", r"\\") + "\n", page, flags=re.MULTILINE)
    return page


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(renewed(Path(name).read_text(encoding="utf-8")), encoding="utf-8")
