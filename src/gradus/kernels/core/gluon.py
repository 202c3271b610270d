"""Load kernels written in Gluon, Triton's lower level, which is experimental and differs between versions."""

import logging
from importlib import import_module
from typing import Any

import triton

log = logging.getLogger(__name__)


def in_gluon(module: str, name: str) -> Any | None:
    """Import `name` from `gradus.kernels.module`; None where this Triton's Gluon is not the one it was written for."""
    try:
        return getattr(import_module(f"gradus.kernels.{module}"), name)
    except (ImportError, AttributeError, TypeError) as error:
        log.info("a faster kernel is left out: Triton %s has another Gluon (%s)", triton.__version__, error)
        return None
