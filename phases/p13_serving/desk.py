"""The event loop's side of the server: it passes requests to the engine's thread, and reports to clients' streams.

Every method runs on the event loop. So between two awaits nothing else runs, and counting needs no lock.
"""

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Any

from gradus.engine.request import ModelLimits, Request, SamplingParams, SchedulingParams
from gradus.errors import GradusError
from phases.p13_serving.admission import Admission, Refused
from phases.p13_serving.engine_thread import Cancel, Message, Report
from phases.p13_serving.stream import Stream

Send = Callable[[Message], object]


class Desk:
    """Admits, follows and ends requests.

    send: puts a message into the engine thread's inbox. timeout: for each request, waiting and running together. state:
    "ready", "draining" or "failed".
    """

    def __init__(self, limits: ModelLimits, tokenizer: Any, admission: Admission, send: Send, timeout: float) -> None:
        self.limits, self.tokenizer, self.admission, self.send = limits, tokenizer, admission, send
        self.scheduling = SchedulingParams(timeout=timeout)
        self.state = "ready"
        self.retry_after: int | None = None
        self.streams: dict[str, Stream] = {}
        self.empty = asyncio.Event()
        self.empty.set()
        self.numbers = itertools.count(1)

    async def submit(self, prompt: str | list[int], params: SamplingParams) -> Stream:
        """Admit a request, and send it to the engine. Raises Refused, or RequestError."""
        self.check_open()
        self.admission.enter()  # before the first await: no other request may enter between the check and the count
        self.empty.clear()
        try:
            ids = await asyncio.to_thread(self.tokenizer.encode, prompt) if isinstance(prompt, str) else prompt
            self.check_open()  # much may have happened meanwhile
            request = Request.create(f"gen-{next(self.numbers)}", ids, params, self.limits, self.scheduling)
        except BaseException:
            self.leave()
            raise
        stream = self.streams[request.id] = Stream(request, self.tokenizer.token_bytes)
        self.send(request)
        return stream

    def check_open(self) -> None:
        if self.state != "ready":
            raise Refused(f"the server is {self.state}", self.state, retry_after=self.retry_after)

    def on_report(self, report: Report) -> None:
        """Pass a step's outputs on to their streams. Drop those whose clients have left."""
        for output in report.outputs:
            if stream := self.streams.get(output.request_id):
                stream.push(output)
                if stream.finish_reason is not None:
                    self.close(stream, tell=output.finish_reason is None)
        ended: dict[str, GradusError | None] = dict(report.refused)
        if report.failed:
            self.state, ended = "failed", dict.fromkeys(self.streams)
        for request_id, error in ended.items():
            if stream := self.streams.get(request_id):
                stream.end("error", error=error)
                self.close(stream)

    def close(self, stream: Stream, tell: bool = False) -> None:
        """Forget a stream that has ended. tell: also cancel it in the engine, which has not ended it."""
        if tell:
            self.send(Cancel(stream.request.id))
        del self.streams[stream.request.id]
        self.leave()

    def leave(self) -> None:
        self.admission.leave()
        if self.admission.inside == 0:
            self.empty.set()

    def cancel(self, stream: Stream) -> None:
        """End a request whose client has left, or whose time is up, unless it has already ended."""
        if stream.request.id in self.streams:
            stream.end("cancelled")
            self.close(stream, tell=True)

    async def drain(self, seconds: float) -> None:
        """Stop admitting, give running requests `seconds` to end, and cancel the rest."""
        self.state, self.retry_after = "draining", max(1, math.ceil(seconds))
        try:
            await asyncio.wait_for(self.empty.wait(), seconds)
        except TimeoutError:
            for stream in list(self.streams.values()):
                self.cancel(stream)
