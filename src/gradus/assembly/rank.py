"""A rank other than 0: a process that loads its part and runs the plans it receives. `python -m` starts it."""

import json
import os
import shutil
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from gradus.assembly.final import draft_shapes, storage_of
from gradus.assembly.on_torch import torch_runner
from gradus.assembly.parallel import choose_exchange, device_of, exchange_of, memory_report, options_of
from gradus.config.options import EngineConfig
from gradus.device import threads
from gradus.device.transfer import current
from gradus.engine.engine import Runner
from gradus.engine.plan import Result, Sampled
from gradus.engine.wire import pack_sampled, unpack
from gradus.errors import GradusError
from gradus.loading import open_checkpoint
from gradus.models.precision import DTYPES
from gradus.parallel.compiling import Follower
from gradus.parallel.messages import ALIVE, FAILED, OPENED, READY, SAMPLED, Channel
from gradus.parallel.model import Part, load_part
from gradus.parallel.place import Place
from gradus.parallel.ranks import SIGN_OF_LIFE_S
from gradus.sampling.constraints import Constraints
from gradus.scheduling.step_times import StepTimes
from gradus.structured import Grammars, grammars_of


def main(descriptor: int) -> int:
    """Serve rank 0 until it closes the stream. Returns the exit code."""
    channel = Channel(socket.socket(fileno=descriptor))
    job = channel.receive()
    if job is None:
        return 0
    lock = threading.Lock()  # two threads send

    def say(message: bytes) -> None:
        with lock:
            channel.send(message)

    parsed = json.loads(job)
    try:
        run(channel, parsed, say)
    except Exception as error:
        if not isinstance(error, GradusError):
            traceback.print_exc()
        with suppress(OSError):
            say(FAILED + f"{error}".encode())
        return 1
    finally:
        shutil.rmtree(Path(parsed["path"]).parent, ignore_errors=True)  # rank 0 may have died without doing so
    return 0


def run(channel: Channel, job: Mapping[str, Any], say: Callable[[bytes], None]) -> None:
    """Load this rank's part as `job` describes it, and run plans until the stream closes."""
    place = Place(job["rank"], job["tensor"], job["pipeline"])
    device = device_of(torch.device(job["device"]), place)
    checkpoint = open_checkpoint(job["model"])
    with current(device):
        say(OPENED + memory_report(device))
    threading.Thread(target=live, args=(say, Path(job["path"]).parent), daemon=True).start()
    options = channel.receive()
    if options is None:
        return
    config = options_of(options)
    if config.threads is not None:
        threads.use(config.threads)
    tokenizer = checkpoint.tokenizer  # grammars use it, but do not keep it
    grammars = None if tokenizer is None else grammars_of(tokenizer, config.limits)
    if grammars is not None:
        grammars.warm()  # while the weights are read
    with current(device):
        part = load_part(checkpoint, place, job["path"], DTYPES[job["dtype"]], device)
        runner = runner_of(part, config, grammars)
    say(READY)
    # a CPU's step has ended when `run` returns; on a GPU as many are under way as in an engine with overlap
    most = 0 if device.type == "cpu" else place.pipeline + 1
    reports = place.pipeline > 1 and place.last and place.part == 0
    compiling = None if grammars is None else Follower(grammars)
    follow(
        channel, runner, most, (lambda sampled: say(SAMPLED + pack_sampled(sampled))) if reports else None, compiling
    )


def runner_of(part: Part, config: EngineConfig, grammars: Grammars | None) -> Runner:
    """Build the rank's runner, in step with those of the other ranks. grammars: of the model's tokenizer."""
    constraints, storage = None if grammars is None else Constraints(grammars), storage_of(part.model, config)
    exchange = exchange_of(part, config)
    choose_exchange(exchange, part)
    if exchange is not None:
        from gradus.assembly.on_gpu import gpu_runner  # here: Triton is not everywhere

        quiet = lambda done, total: None  # noqa: E731
        shapes = draft_shapes(config, None, False)
        return gpu_runner(part.model, storage, config, quiet, None, None, shapes, StepTimes(), constraints, exchange)
    return torch_runner(part.model, storage, config, None, None, constraints, part.run)


def follow(
    channel: Channel,
    runner: Runner,
    most: int,
    report: Callable[[Sampled], None] | None = None,
    compiling: Follower | None = None,
) -> None:
    """Run plans as they come, until the stream closes. report: gets what each step has sampled. compiling: takes the
    messages that are no plans.

    A step's result is asked for only where no further plan waits, or more than `most` steps are under way: grammars
    follow answers by it, and the draw that such a step has held back is made then, which rank 0 may be waiting for.
    """
    under_way: deque[Result] = deque()
    while True:
        while under_way and (len(under_way) > most or not channel.waiting()):
            sampled = under_way.popleft().get()
            if report is not None:
                report(sampled)
        if (packed := channel.receive()) is None:
            return
        if compiling is None or not compiling.take(packed):
            under_way.append(runner.run(unpack(packed)))


def live(say: Callable[[bytes], None], folder: Path) -> None:
    """Send heartbeats while rank 0 listens, and exit once it has gone.

    An exchange of NCCL would wait for rank 0 for minutes, holding GPU memory that the next engine needs. folder: the
    ranks' rendezvous.
    """
    try:
        while True:
            say(ALIVE)
            time.sleep(SIGN_OF_LIFE_S)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    sys.stderr.flush()
    os._exit(code)  # an exchange waiting for a dead rank would keep the interpreter from exiting
