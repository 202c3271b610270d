"""A runner written from the specification's page alone does all that ours does, in a process of its own."""

import json
import random
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from gradus.execution.remote.messages import LARGEST, LARGEST_GREETING, LONGEST_REASON, PLANS, PROTOCOL, Hello
from gradus.execution.remote.runner import RunnerLost
from gradus.execution.remote.service import PATIENCE_S
from tests.execution.remote.pairs import connected, lived
from tests.execution.remote.test_breaking import a_step, first_plan, with_span
from tests.scheduling.replica import Replica
from tests.scheduling.world import World

PROGRAM = Path(__file__).with_name("minimal.py")
PAGE = (Path(__file__).parents[3] / "docs" / "design" / "remote.md").read_text(encoding="utf-8")
SIZES = {"vocab_size": 1000, "context_length": 4096, "max_sequences": 5, "page_size": 4, "pages": 24}


@contextmanager
def minimal(path, **sizes):
    """The address of a minimal runner."""
    command = [sys.executable, str(PROGRAM), str(path), json.dumps({**SIZES, **sizes})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield path
        process.kill()


@pytest.mark.parametrize("windows", [(None,), (None, 6, 6)])
@pytest.mark.parametrize("lag", [0, 1])
def test_random_work_gets_its_tokens_from_a_runner_written_from_the_page(tmp_path, windows, lag):
    for seed in range(4):
        draw = random.Random(seed)
        pages, page_size, slots = draw.randint(12, 24), draw.choice([1, 2, 4]), draw.randint(1, 5)
        sizes = {"pages": pages, "page_size": page_size, "max_sequences": slots, "windows": windows}
        with minimal(tmp_path / str(seed), **sizes) as path:
            budget = draw.choice([None, 2, 5, 16])
            world = World(pages, page_size, slots, budget, shared=seed % 2 > 0, windows=windows, lag=lag)
            lived(world, connected(path), draw)


def test_it_draws_what_the_simulated_runner_draws_and_refuses_what_is_wrong(tmp_path):
    with minimal(tmp_path / "socket") as path:
        runner = connected(path)
        with pytest.raises(RunnerLost, match="Wrong: a page does not exist"):
            runner.run(with_span(first_plan(), pages=first_plan().spans[0].pages._replace(pages=((25,),)))).get()
        runner.stream.close()
        runner = connected(path)
        assert a_step(runner) == a_step(Replica(4))
        runner.stream.close()


def test_it_shares_nothing_with_gradus():
    assert "import gradus" not in (source := PROGRAM.read_text(encoding="utf-8")) and "from gradus" not in source


def test_the_page_has_the_numbers_and_the_fields_of_the_code():
    for number in (
        f"`protocol` is {PROTOCOL}", f"`{PLANS}`", f"{LARGEST >> 20} MiB", f"{LARGEST_GREETING >> 10} KiB",
        f"{LONGEST_REASON:,} characters", f"within {PATIENCE_S:g} s",
    ):  # fmt: skip
        assert number in PAGE, number
    for field in msgspec.structs.fields(Hello):
        assert f"`{field.name}`" in PAGE, field.name
    assert len(PAGE.splitlines()) <= 120
