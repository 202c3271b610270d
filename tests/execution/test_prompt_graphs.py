"""Which steps with prompts are worth a graph."""

from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.execution.gpu.prompt_graphs import LONGER, LOOKS, SIZES, PromptGraphs, prompt_sizes
from gradus.models.shapes import SHAPES


class Timed(PromptGraphs):
    """Passes that take what `times` says: by size, of each look, until the host has launched it and the GPU run it."""

    def __init__(self, times: dict[int, list[tuple[float, float]]]) -> None:
        self.sizes, self.recorder = list(times), SimpleNamespace(agree=list)
        self.looks = {size: iter(looks) for size, looks in times.items()}

    def _set_up(self, size):
        pass

    def _run(self, size, early, full):
        pass

    def _launch_ms(self, size):
        return next(self.looks[size])


QUICK, SLOW = (10.0, 10.0 * LONGER), (10.0, 10.1 * LONGER)


def test_one_hiccup_does_not_cost_a_size_its_graph():
    hiccups = [SLOW] * (LOOKS - 1)
    assert Timed({16: [*hiccups, QUICK], 32: [QUICK]})._launching() == {16: 10.0, 32: 10.0}


def test_beyond_the_first_size_that_the_gpu_is_slower_at_none_is_tried():
    assert Timed({16: [QUICK], 32: [SLOW] * LOOKS, 48: []})._launching() == {16: 10.0}


@pytest.mark.parametrize(
    ("shape", "budget", "largest"),
    [
        ("gpt2-124m", None, SIZES[-1]),
        ("gpt2-124m", 2048, 2048),
        ("gpt2-124m", 2049, 3072),
        ("llama-3.2-1b", None, 4096),  # 2 GFLOP per row
        ("llama-3.1-8b", None, 512),
    ],
)
def test_sizes_go_as_far_as_a_step_may_have_rows_and_a_gpu_be_done_before_its_host(shape, budget, largest):
    assert prompt_sizes(SHAPES[shape], budget)[-1] == largest
