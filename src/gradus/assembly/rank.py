"""A rank other than 0: a process that loads its part and runs the plans it receives. `python -m` starts it."""

import json
import os
import shutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from gradus.assembly.final import storage_of
from gradus.assembly.on_torch import torch_runner
from gradus.assembly.parallel import device_of, options_of, place_of
from gradus.device import threads
from gradus.device.transfer import current
from gradus.engine.wire import pack_sampled, unpack
from gradus.errors import GradusError
from gradus.execution.runner import ModelRunner
from gradus.loading import open_checkpoint
from gradus.models.precision import DTYPES
from gradus.parallel.messages import Channel
from gradus.parallel.model import load_part
from gradus.parallel.pipeline import in_step
from gradus.parallel.ranks import ALIVE, FAILED, OPENED, READY, SAMPLED, SIGN_OF_LIFE_S
from gradus.sampling.constraints import Constraints
from gradus.structured import grammars_of


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
    config = options_of(job["options"])
    place = place_of(config, job["rank"])
    device = device_of(torch.device(job["device"]), place)
    if config.threads is not None:
        threads.use(config.threads)
    checkpoint = open_checkpoint(job["model"])
    say(OPENED)
    with current(device):
        model, run_model = load_part(checkpoint, place, job["path"], DTYPES[job["dtype"]], device)
        tokenizer = checkpoint.tokenizer  # grammars use it, but do not keep it
        constraints = None if tokenizer is None else Constraints(grammars_of(tokenizer, config.limits))
        runner, _ = torch_runner(model, storage_of(model, config), config, None, None, constraints)
        assert isinstance(runner, ModelRunner), "ranks verify no drafts"
        runner = in_step(runner, run_model)
    say(READY)
    threading.Thread(target=live, args=(say, Path(job["path"]).parent), daemon=True).start()
    reports = place.pipeline > 1 and place.last and place.part == 0
    while (packed := channel.receive()) is not None:
        sampled = runner.run(unpack(packed)).get()
        if reports:
            say(SAMPLED + pack_sampled(sampled))


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
