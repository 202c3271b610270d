"""The end of a script in `benchmarks` that cannot run: one line that says what is missing and what to do.

A script calls `sys.exit(ran(main))`. If it imports kernels, which import Triton, it first calls `need_triton()`, above
those imports and only when it is `__main__`.
"""

import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from gradus.errors import GradusError
from gradus.kernels import missing

MISTAKE = 2  # the exit code, as the commands have it


def need_triton() -> None:
    """End the process with one line if Triton is not installed."""
    if find_spec("triton") is None:
        _print_mistake(missing("cuda"))
        sys.exit(MISTAKE)


def ran(main: Callable[[], int | None]) -> int:
    """Run a script; returns its exit code. A GradusError, such as a GPU that is not there, becomes one line.

    SIGTERM, as `timeout` sends it, is an exception too: the servers that the script has started end with it.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return main() or 0
    except GradusError as mistake:
        _print_mistake(mistake)
        return MISTAKE
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_mistake(what: object) -> None:
    print(f"{Path(sys.argv[0]).stem}: {what}", file=sys.stderr)
