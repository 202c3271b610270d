"""What p10's figures say can be worked out by hand, or is what the loop does."""

import re

from gradus.course import figures_graphs as figures


def test_a_layer_launched_takes_the_host_as_long_as_its_launches():
    launched, replayed = map(int, re.findall(r"(\d+) µs", figures.replay().title))
    times = figures.kernels()
    assert launched == 6 * figures.LAUNCH and replayed == round(sum(times.values()) + 6 * figures.GAP)
    numbers = sum(times[name] for name in ("qkv", "gate_up", "down")) * figures.BANDWIDTH / 2  # of two bytes
    assert round(numbers) == 1024 * (2048 + 1024 + 1024 + 3 * 3072)  # Qwen3-0.6B's three largest matrices


def test_one_step_ahead_the_device_never_waits_and_one_span_is_in_vain():
    waiting, ahead = figures.Run(lag=0).play(), figures.Run(lag=1).play()
    assert waiting.idle == (len(waiting.steps) - 1) * (figures.PLAN + figures.COMMIT) and not any(waiting.waste)
    assert ahead.idle == 0
    assert [number for number, waste in enumerate(ahead.waste, start=1) if waste] == [4]
    assert [[names.get(0) for names in run.names] for run in (waiting, ahead)] == [
        ["Ann"] * 3 + ["Cy"] * 3,
        ["Ann"] * 4 + ["Cy"] * 3,
    ]
