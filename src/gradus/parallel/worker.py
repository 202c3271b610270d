"""A rank other than 0: a process that loads its part, and runs the plans that it gets. `python -m` starts it."""

import json
import os
import socket
import sys
import threading
import time
from typing import Any

from gradus.engine.wire import unpack
from gradus.errors import GradusError
from gradus.parallel.messages import Channel
from gradus.parallel.ranks import ALIVE, FAILED, READY, SIGN_OF_LIFE_S


def main(descriptor: int) -> int:
    """Serve rank 0 until it closes the stream. Returns the exit code."""
    channel = Channel(socket.socket(fileno=descriptor))
    job = channel.receive()
    if job is None:
        return 0
    lock = threading.Lock()  # two threads send
    try:
        runner = _runner(json.loads(job))
        with lock:
            channel.send(READY)
        threading.Thread(target=_live, args=(channel, lock), daemon=True).start()
        while (packed := channel.receive()) is not None:
            runner.run(unpack(packed)).get()
    except Exception as error:
        if not isinstance(error, GradusError):
            import traceback

            traceback.print_exc()
        with lock:
            _say(channel, FAILED + f"{error}".encode())
        return 1
    return 0


def _runner(job: dict[str, Any]) -> Any:
    from gradus.assembly.parallel import other_rank

    return other_rank(job)


def _live(channel: Channel, lock: threading.Lock) -> None:
    """Send signs of life while rank 0 listens."""
    while True:
        with lock:
            if not _say(channel, ALIVE):
                return
        time.sleep(SIGN_OF_LIFE_S)


def _say(channel: Channel, message: bytes) -> bool:
    try:
        channel.send(message)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    sys.stderr.flush()
    os._exit(code)  # an exchange that waits for a dead rank would keep the interpreter from ending
