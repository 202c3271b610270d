"""The routes that describe the model and its tokens."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response

from gradus.server.api.anthropic.request import counted
from gradus.server.api.models import described, listed
from gradus.server.api.schemas import openapi_of
from gradus.server.api.tokens import detokenized, tokenized, tokenizer_described
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.failures import ClientGone
from gradus.server.http.answers import json_response
from gradus.server.http.body import read_json
from gradus.server.http.record import record_of
from gradus.server.http.streaming import cancelled_with_client
from gradus.server.limits import body_limit
from gradus.server.models.registry import Models

UNKNOWN_MODEL: dict[int | str, dict[str, Any]] = {404: {"description": "no model has this name"}}
Answer = Callable[[Any, EngineClient], dict[str, Any]]


def add_model_routes(app: FastAPI, models: Models, config: ServerConfig) -> None:
    """Add the routes that need no engine; /tokenizer_info only if the configuration allows it, of the first model."""
    created = int(time.time())

    def route(path: str, answer: Answer, summary: str) -> None:
        async def handler(request: Request) -> Response:
            most = body_limit(config, models.largest())
            body = await read_json(request, max_bytes=most, timeout=config.receive_timeout)
            client = models.chosen(body)
            await known(request, client)
            return json_response(200, await computed(request, most, client, partial(answer, body, client)))

        app.post(path, summary=summary, openapi_extra=openapi_of(path, config))(handler)

    route("/tokenize", tokenized, "Encode a prompt or a conversation")
    route("/detokenize", detokenized, "Decode token ids")
    route("/v1/messages/count_tokens", counted, "Count a conversation's tokens, in Anthropic's protocol")

    @app.get("/v1/models", summary="The models by each of their names, in OpenAI's form and Anthropic's")
    async def every(request: Request) -> Response:
        return json_response(200, listed(models, created, request.query_params))

    @app.get("/v1/models/{name:path}", summary="A model, by one of its names", responses=UNKNOWN_MODEL)
    async def model(name: str) -> Response:
        return json_response(200, described(models.called(name), name, created))

    if config.tokenizer_info:

        @app.get("/tokenizer_info", summary="The tokenizer's control tokens and chat template")
        async def info() -> Response:
            return json_response(200, tokenizer_described(models.first))


async def known(request: Request, client: EngineClient) -> None:
    """Wait until a model that no request has loaded yet is loaded, unless the client leaves before.

    Raises Unavailable, RequestTimeout or ClientGone.
    """
    if client.info is not None or not client.on_demand:
        return
    job = asyncio.ensure_future(client.known())
    async with cancelled_with_client(request.receive, job):
        await asyncio.wait([job])
    if job.cancelled():
        raise ClientGone("the client has left")
    job.result()


async def computed(
    request: Request, most: int, client: EngineClient, work: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Compute an answer when its key's turn comes, unless its client leaves before.

    most: bytes of the body, if it does not say how many. Raises Unavailable if too many wait.
    """
    announced = request.headers.get("content-length", "")
    size = int(announced) if announced.isdecimal() else most
    client.texts.check_room(size)
    job = client.texts.put(record_of(request.scope).key, size, work)
    async with cancelled_with_client(request.receive, job):
        await asyncio.wait([job])
    if job.cancelled():
        raise ClientGone("the client has left")
    return job.result()
