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
    """Format one row per setting of a server: key, default and description."""
    rows = (
        f"| `{name}` | {one.by_default} | {one.help}{_engines(one)} |" for name, one in described(ServerConfig).items()
    )
    return "\n".join(["| key | default | |", "|---|---|---|", *rows])


def switches_table() -> str:
    """Format one row per optimization that `switch_off` accepts."""
    rows = (f"| `{name}` | {one.help} |" for name, one in SWITCHES.items())
    return "\n".join(["| optimization | |", "|---|---|", *rows])


def _engines(setting: Setting) -> str:
    """Name the engines that use a setting, in parentheses; "" if all do."""
    if setting.heeded == "all":
        return ""
    if setting.heeded == "phase":
        return " (phases)"
    names = [phase.name for phase in phases.engines() if setting.name in heeded(phase.name)]
    return f" ({', '.join([*names, 'the final engine'])})"


def renewed(page: str) -> str:
    """Renew the page's tables of settings. A table ends at the first blank line."""
    for table in (switches_table(), settings_table()):
        header = re.escape(table.splitlines()[0])
        page = re.sub(rf"^{header}\n(\|.*\n)+", table.replace("\\", r"\\") + "\n", page, flags=re.MULTILINE)
    return page


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(renewed(Path(name).read_text(encoding="utf-8")), encoding="utf-8")
