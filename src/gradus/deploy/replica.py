"""A replica: the server's application over an engine process of its own, with Ray's hooks.

Ray calls `check_health`, and replaces a replica that raises; `record_routing_stats`, and gives the result to the
routers; and, once no request runs or the drain timeout is over, `__del__`.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from gradus.deploy.prefixes import RecentPrefixes
from gradus.deploy.relay import Message, relayed
from gradus.errors import ConfigError
from gradus.server import logs
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.http.app import create_app
from gradus.server.http.keys import VARIABLE, Keys

HASHES, VERSION = "hashes", "version"  # the keys of the published statistics


class Replica:
    """keyed: the deployment was started with API keys, so a replica without any would be open to everybody."""

    def __init__(self, config: ServerConfig, loader: str, keyed: bool) -> None:
        if keyed and not Keys.of(config):
            raise ConfigError(
                f"the deployment has API keys, but a replica's machine has no file of keys and no {VARIABLE}"
            )
        logs.set_up(config)
        self._client = EngineClient(config, loader)
        self._app = create_app(self._client, config)
        self._prefixes = RecentPrefixes()
        self._version = 0

    async def start(self) -> None:
        """Load the model. Raises the GradusError that ended loading, or RuntimeError."""
        self._client.start()
        await self._client.loaded()

    async def answer(
        self, scope: dict[str, Any], body: bytes, hashes: tuple[int, ...]
    ) -> AsyncGenerator[list[Message], None]:
        """Answer one request with ASGI messages. hashes: of the prompt's beginning, published once it was served."""
        served = False
        async with aclosing(relayed(self._app, scope, body)) as batches:
            async for messages in batches:
                if not served and messages[0].get("status") == 200 and hashes:  # the engine has taken the prompt
                    served = True
                    self._prefixes.add(hashes)
                    self._version += 1
                yield messages

    def check_health(self) -> None:
        """Raise if only a new replica helps. A replica that restarts its engine answers 503 meanwhile, and is kept."""
        if self._client.state == "failed":
            raise RuntimeError(self._client.reason)

    def record_routing_stats(self) -> dict[str, Any]:
        """Publish the prefixes that were served recently, and a version that changes with them."""
        return {VERSION: self._version, HASHES: self._prefixes.published()}

    async def close(self) -> None:
        """End what still runs, and the engine's process."""
        await self._client.drain(0.0)
        await self._client.close()
