"""An engine's runner and the process that runs its plans, here on a thread."""

import threading
from collections.abc import Callable

from gradus.execution.remote.messages import PLANS, PROTOCOL, Hello
from gradus.execution.remote.runner import RemoteRunner, greet
from gradus.execution.remote.service import Service
from gradus.execution.remote.stream import Listener, connect

SIZES = {"protocol": PROTOCOL, "plans": PLANS, "vocab_size": 1000, "context_length": 4096}


def hello_of(**sizes) -> Hello:
    """The greeting of a runner for the worlds of tests/scheduling."""
    return Hello(**{**SIZES, "max_sequences": 5, "page_size": 4, "pages": 24, "drafts": 16, **sizes})


def serving(path, service: Service, ends: Callable[[BaseException], None] = lambda error: None) -> Listener:
    """Serve engines at the path until the listener is closed. ends: gets what ended it."""
    listener = Listener(str(path))

    def run() -> None:
        try:
            service.serve(listener)
        except BaseException as error:
            ends(error)

    threading.Thread(target=run, daemon=True).start()
    return listener


def connected(path) -> RemoteRunner:
    stream = connect(f"unix:{path}", 10.0)
    return RemoteRunner(stream, greet(stream, "a test"))
