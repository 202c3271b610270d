"""GET /xray: a running engine's state, as it changes; GET /xray/trace: its last steps, for Perfetto."""

import asyncio
import math

from fastapi import FastAPI, Request, Response

from gradus.errors import RequestError
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.http.record import record_of
from gradus.server.http.watch.stream import WatchStream, watching
from gradus.server.models.registry import Models
from gradus.server.xray.watchers import Watcher, Watchers, encode

FIRST_LOOK_S = 2.0  # how long to wait for an engine inside a step
MOST_SECONDS = 10.0
PAUSE_S = 0.25  # after a trace: making one takes other requests' time


def add_xray(app: FastAPI, models: Models, config: ServerConfig) -> None:
    """Add the routes of the live X-ray. `model` in the query chooses one of several models; without it, the first."""

    def watched(request: Request) -> EngineClient:
        name = request.query_params.get("model")
        return models.first if name is None else models.called(name)

    tracing = asyncio.Lock()

    @app.get("/xray", summary="The engine as it works: pages, batch, queue, prefix tree and steps, as events")
    async def xray(request: Request) -> Response:
        key, watchers = record_of(request.scope).key, watched(request).watchers
        if request.query_params.get("once", "0") not in ("", "0"):
            with watching(watchers, key) as watcher:
                return Response(await first_look(watchers, watcher), media_type="application/json")
        return WatchStream(watchers, watchers.add(key), config.write_timeout)

    @app.get("/xray/trace", summary="The engine's last 512 steps, as a Chrome trace: for ui.perfetto.dev")
    async def trace(request: Request) -> Response:
        key, seconds = record_of(request.scope).key, seconds_of(request.query_params.get("seconds"))
        client = watched(request)
        watchers = client.watchers
        with watching(watchers, key) as watcher:
            if seconds is None and not watchers.has_picture:
                seconds = 1.0
            await asyncio.sleep(seconds or 0.0)
            await first_look(watchers, watcher)
            made = watchers.tracer(key, client.model)
            async with tracing:
                content = await asyncio.to_thread(lambda: encode(made()))
                await asyncio.sleep(PAUSE_S)
        headers = {"content-disposition": 'attachment; filename="gradus-trace.json"'}
        return Response(content, media_type="application/json", headers=headers)


async def first_look(watchers: Watchers, watcher: Watcher) -> bytes:
    """Return the whole picture, once the engine has shown itself; only its state, if it does not."""
    if not watchers.has_picture:
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                while not watchers.has_picture and await watcher.next() is not None:
                    pass
        except TimeoutError:
            pass
    return watchers.whole(watcher.key)


def seconds_of(text: str | None) -> float | None:
    """Read how long to watch. Raises RequestError."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MOST_SECONDS:
        raise RequestError.of("seconds", f"a number between 0 and {MOST_SECONDS:g}", text)
    return seconds
