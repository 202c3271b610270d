"""The server that is asked: whose it is, its key, its model."""

import json
import os
import ssl
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gradus.errors import ConfigError
from gradus.server.addresses import host_alone

if TYPE_CHECKING:
    from http.client import HTTPConnection

KEY = "GRADUS_API_KEY"  # as in gradus.server.http.keys, whose imports would take a client 100 ms
CONSENT = "--yes-this-server-is-mine"
TIMEOUT_S = 30.0
LOOK_S = 0.2  # between two looks at a server that is loading
MOST_ANSWER = 1 << 22  # bytes of a list of models, or of /stats


@dataclass(frozen=True, slots=True)
class Target:
    """A server. key: its API key, which is never printed."""

    host: str
    port: int
    tls: bool = False
    key: str | None = field(default=None, repr=False)

    @classmethod
    def at(cls, url: str, *, mine: bool = False, key_variable: str = KEY, option: str = "--base-url") -> "Target":
        """Parse the address. mine: the user says that a server on another machine is theirs.

        Raises ConfigError unless the address is this machine's or the user has said so: a load on others' servers is
        an attack.
        """
        try:
            parts = urlsplit(url)
            host, port = host_alone(parts.hostname or ""), parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            host, port, parts = None, 0, urlsplit("")
        known = host is not None and parts.scheme in ("http", "https") and parts.path in ("", "/") and not parts.query
        own = host == "localhost" or (not isinstance(host, str | None) and host.is_loopback)
        if not known or not (own or mine):
            where = f"of a server on this machine, such as http://127.0.0.1:8000, got {url[:100]}"
            hint = f"; if that server is yours to load, add {CONSENT}" if known else ""
            raise ConfigError(f"{option} must be the address {where}{hint}")
        return cls(str(host), port, parts.scheme == "https", os.environ.get(key_variable) or None)

    @property
    def name(self) -> str:
        """The host and port as a request's head has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.tls else None

    def connection(self, timeout: float) -> "HTTPConnection":
        """A connection that is not open yet."""
        from http.client import HTTPConnection, HTTPSConnection  # help does without them

        if self.tls:
            return HTTPSConnection(self.host, self.port, timeout=timeout, context=self.context())
        return HTTPConnection(self.host, self.port, timeout=timeout)

    def get(self, path: str) -> tuple[int, bytes]:
        """Ask for a page. Raises ConfigError if nothing answers."""
        from http.client import HTTPException

        connection = self.connection(TIMEOUT_S)
        try:
            connection.request("GET", path, headers=self.headers)
            response = connection.getresponse()
            return response.status, response.read(MOST_ANSWER)
        except (OSError, HTTPException) as error:
            raise ConfigError(f"no answer from {self} ({error}): start it, for example with gradus serve") from error
        finally:
            connection.close()

    def stats(self) -> dict[str, Any] | None:
        """What /stats says of a Gradus server; None for any other. Raises ConfigError with a refusal's message."""
        status, text = self.get("/stats")
        found = _parsed(text)
        if status == 200 and found is not None and "state" in found:
            return found
        self._check_access(status, found)
        return None

    def _check_access(self, status: int, found: dict[str, Any] | None) -> None:
        """Raise ConfigError with the server's words if it wants another key."""
        error = (found or {}).get("error")
        if status in (401, 403):
            raise ConfigError(f"the server refuses: {error.get('message') if isinstance(error, dict) else status}")

    def ready(self, patience: float = 600.0) -> dict[str, Any] | None:
        """A Gradus server's statistics, once its model is loaded; None for any other server."""
        ends = monotonic() + patience
        while (found := self.stats()) is not None and found["state"] == "loading" and monotonic() < ends:
            sleep(LOOK_S)
        if found is not None and "vocab_size" not in found:
            raise ConfigError(f"{self} serves no model: it is {found['state']}")
        return found

    def model(self) -> str:
        """The first model that /v1/models lists. Raises ConfigError if it lists none."""
        status, text = self.get("/v1/models")
        found = _parsed(text)
        self._check_access(status, found)
        listed = (found or {}).get("data")
        if status != 200 or not isinstance(listed, list) or not listed or not isinstance(listed[0], dict):
            raise ConfigError(f"{self} lists no models: GET /v1/models answers with status {status}")
        return str(listed[0].get("id"))

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.name}"


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
