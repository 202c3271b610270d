"""Plans for GPUs that are not here, made with a CPU's precision."""

import pytest

from gradus.models import precision


@pytest.fixture
def prompts_are_not_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take 16-bit prompts to be as fast as float32's: with an 8B model's width, the race takes seconds."""
    monkeypatch.setattr(precision, "_prompts_in", lambda kind, shape, threads: (precision.NEVER, 1.0))
