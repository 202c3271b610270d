"""A failed allocation as one line that says what to lower."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gradus.config.options import EngineConfig, EngineOptions
from gradus.errors import ConfigError
from gradus.execution.memory.device_memory import DeviceMemory, ran_out


@contextmanager
def enough_memory(options: EngineOptions, device: torch.device) -> Iterator[None]:
    """Turn a failed allocation into a ConfigError that says what to lower, and which processes held memory before."""
    before = DeviceMemory.of(device) if device.type == "cuda" else None
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        final = isinstance(options, EngineConfig)
        holders = "" if before is None else before.holders(device)
        lower = "memory_fraction or cache_tokens" if final else "cache_tokens (in phases with pages)"
        raise ConfigError(
            f"not enough memory for the weights and a cache of {options.cache_positions} tokens: lower {lower}, "
            f"max_sequences or context_length (`gradus serve --dry-run` shows what fits){holders}"
        ) from error
