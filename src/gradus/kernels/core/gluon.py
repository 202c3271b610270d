"""Load kernels written in Gluon, Triton's lower level, which is experimental and differs between versions."""

import logging
from collections.abc import Callable
from typing import TypeVar

import triton

log = logging.getLogger(__name__)

Kernel = TypeVar("Kernel")


def in_gluon(load: Callable[[], Kernel]) -> Kernel | None:
    """Return what `load` imports; None where this Triton's Gluon is not the one it was written for."""
    try:
        return load()
    except (ImportError, AttributeError, TypeError) as error:
        log.info("a faster kernel is left out: Triton %s has another Gluon (%s)", triton.__version__, error)
        return None
