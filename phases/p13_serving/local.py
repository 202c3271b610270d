"""For experiments: the server on a thread of this process, and a client that times each frame."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradus.engine.core import Core
from gradus.server.config import ServerConfig
from phases.p13_serving.server import Server

TICK_S = 0.005


@contextmanager
def local(engine: Core, tokenizer: Any, places: int = 64, **settings: Any) -> Iterator[tuple[Server, int]]:
    """Run a server until the block ends. Yields the server and its port."""
    made: list[Server] = []

    async def run() -> None:
        made.append(Server(engine, tokenizer, "local", places, ServerConfig(port=0, log_level="error", **settings)))
        await made[0].serve()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="event loop")
    thread.start()
    while thread.is_alive() and not (made and made[0].started):
        time.sleep(TICK_S)
    try:
        yield made[0], made[0].servers[0].sockets[0].getsockname()[1]
    finally:
        made[0].should_exit = True
        thread.join()


def frames(port: int, **body: Any) -> Iterator[tuple[float, dict[str, Any]]]:
    """Send a streaming request, and yield each frame with its time of arrival."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/generate", json.dumps(body | {"stream": True}))
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            yield time.perf_counter(), json.loads(line.removeprefix(b"data: "))
    connection.close()
