"""The served models by name, with one start, one drain and one end."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from gradus.server.api.models import check_name, unknown
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.engine.link import MakeLink
from gradus.server.engine.messages import ModelInfo
from gradus.server.engine.pool import Pool
from gradus.server.writing.outbox import Outbox


class Models:
    """The clients of all models, in the order of the configuration. The first one is loaded at the start."""

    def __init__(self, *clients: EngineClient) -> None:
        self.clients = clients

    @classmethod
    def of(
        cls, config: ServerConfig, loader: str = "gradus.server.engine.loading", link: MakeLink | None = None
    ) -> "Models":
        """Make the clients of the configuration's models."""
        pool, outbox = Pool(config.max_loaded), Outbox()
        each = config.each()
        return cls(*(EngineClient(one, loader, link, pool, one is not each[0], outbox) for one in each))

    def __iter__(self) -> Iterator[EngineClient]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def first(self) -> EngineClient:
        return self.clients[0]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for client in self.clients for name in client.names)

    def chosen(self, body: Any) -> EngineClient:
        """Return the model that a body names. Without a name, and for any name where one model takes it, the first one.

        Raises UnknownModel.
        """
        name = body.get("model") if isinstance(body, Mapping) else None
        if name is None or len(self.clients) == 1:
            check_name(body, self.first)
            return self.first
        return self.called(name)

    def called(self, name: Any) -> EngineClient:
        """Return the model with a name. Raises UnknownModel."""
        found = next((client for client in self.clients if name in client.names), None)
        if found is None:
            raise unknown(name, self.names)
        return found

    def largest(self) -> ModelInfo | None:
        """Return the description of the model with the longest context among those that were loaded: it bounds bodies
        whose model is not read yet."""
        known = [client.info for client in self.clients if client.info is not None]
        return max(known, key=lambda info: info.limits.context_length, default=None)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for client in self.clients:
            client.start()

    async def loaded(self) -> ModelInfo:
        """Wait for the first model, and describe it. Raises the error that ended its load, or RuntimeError; those of
        the others' tokenizers, too: a model that is not there is found at the start."""
        for client in self.clients[1:]:
            await client.opened()
        return await self.first.loaded()

    async def drain(self, timeout: float) -> None:
        await asyncio.gather(*(client.drain(timeout) for client in self.clients))

    def hurry(self) -> None:
        for client in self.clients:
            client.hurry()

    def abandon(self) -> None:
        for client in self.clients:
            client.abandon()

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self.clients))

    @property
    def hurried(self) -> bool:
        return self.first.hurried

    @property
    def failed(self) -> bool:
        """Whether an engine has failed, and no other one could be started."""
        return any(client.state == "failed" for client in self.clients)

    @property
    def stopped(self) -> bool:
        return all(client.stopped for client in self.clients)
