"""Engines that fail, or have no time: clients are to go on."""

import threading
from contextlib import contextmanager
from dataclasses import replace

from tests.clients.agent import say
from tests.server.conftest import eventually, running
from tests.server.saying import SayingCore


class FailingCore(SayingCore):
    """Its first `times` answers end with an error after a few tokens."""

    def __init__(self, say, times=1, **options):
        super().__init__(say, **options)
        self.times = times

    def _advance(self, sample):
        if len(sample.tokens) >= 6 and self.times > 0:
            self.times -= 1
            return replace(self._end(sample, (), "error"), stop_reason=None)
        return super()._advance(sample)


class HeldCore(SayingCore):
    """Its first step does not end before `released`."""

    released: threading.Event

    def step(self):
        outputs = super().step()
        assert self.released.wait(60)
        return outputs


@contextmanager
def busy_server():
    """A server whose queue is full until it has turned a request away."""
    released = threading.Event()

    def core():
        made = HeldCore(say, size=3, context_length=2**20)
        made.released = released
        return made

    with running(core, max_waiting=1) as server:

        def free_it_later():
            if eventually(lambda: server.client.counts.rejected, 60):
                released.set()

        others = [threading.Thread(target=server.generate, kwargs={"prompt": "Hi", "max_tokens": 30})]
        others[0].start()
        assert eventually(lambda: server.engine.running)
        others.append(threading.Thread(target=free_it_later))
        others[1].start()
        try:
            yield server
        finally:
            released.set()
            for other in others:
                other.join()
