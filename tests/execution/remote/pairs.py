"""An engine's runner and the process that runs its plans, here on a thread."""

import random
import threading
from collections.abc import Callable

from gradus.execution.remote.messages import PLANS, PROTOCOL, Hello
from gradus.execution.remote.runner import RemoteRunner, greet
from gradus.execution.remote.service import Service
from gradus.execution.remote.stream import Listener, connect
from tests.scheduling.world import World, random_request

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


class Watched:
    """Keeps the newest plan, as worlds look at it."""

    def __init__(self, runner, clock) -> None:
        self.runner, self.clock, self.plan = runner, clock, None

    def run(self, plan):
        self.plan = plan
        self.clock.now += 1.0
        return self.runner.run(plan)


def lived(world: World, runner: RemoteRunner, draw: random.Random) -> None:
    """A whole life of a world, whose steps this runner runs."""
    world.runner = Watched(runner, world.clock)
    for number in range(12):
        world.add(random_request(f"r{number}", draw))
        for _ in range(draw.randint(0, 6)):
            world.step()
        if world.requests and draw.random() < 0.3:
            world.cancel(draw.choice(list(world.requests)), draw.choice([None, 0, 1]))
    world.drain()
    runner.stream.close()
