"""`gradus.server.engine.loading` with a progress bar, for `gradus serve`."""

import sys
from typing import TYPE_CHECKING

from gradus.cli.progress import LINES_S, SOON_S, Bars
from gradus.loading.progress import Both, Progress
from gradus.server import logs
from gradus.server.engine import loading

if TYPE_CHECKING:
    from gradus.engine.core import Core
    from gradus.loading import Tokenizer
    from gradus.server.config import ServerConfig
    from gradus.server.engine.messages import ModelInfo


class Announced(Bars):
    """Bars, and a line that stays once the model is being loaded: by then all settings have been checked."""

    every_s = SOON_S

    def __init__(self, config: "ServerConfig") -> None:
        super().__init__()
        self._config = config

    def begin(self, task: str, total: int | None) -> None:
        if task.startswith("loading "):
            logs.announce(self._config, task, sys.stderr)
            if self._lines is not None:
                self._lines.every_s = LINES_S
        super().begin(task, total)

    def say(self, line: str) -> None:
        logs.announce(self._config, line, sys.stderr)


def open_tokenizer(config: "ServerConfig", progress: Progress) -> "Tokenizer | None":
    with Announced(config) as bars:
        return loading.open_tokenizer(config, Both(bars, progress))


def load_engine(config: "ServerConfig", progress: Progress) -> "tuple[Core, ModelInfo]":
    with Announced(config) as bars:
        return loading.load_engine(config, Both(bars, progress))
