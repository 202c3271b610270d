"""Access to routes. The default is to refuse: a route missing from the list of public ones needs a key.

The middleware sees a request before any route does, and decides by `scope["path"]`, which the router matches too.
(`request.url` is built from the Host header: with `Host: x/docs?` its path becomes another one.)

Each key has its own prefixes in the cache: its TTFT then reveals nothing about other keys' prompts.
"""

import dataclasses
import hashlib
import secrets
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from gradus.engine.request import MAX_PRIORITY, SchedulingParams
from gradus.errors import ConfigError, RequestError
from gradus.server.api.errors import CLOSE, Problem
from gradus.server.config import KeyLimits, ServerConfig
from gradus.server.exchange import Ask
from gradus.server.http.answers import problem_response
from gradus.server.http.keys import PREFIX, VARIABLE, Key, Keys
from gradus.server.http.quotas import Account
from gradus.server.http.record import Record, record_of
from gradus.server.page.document import prefers_html

PUBLIC = frozenset({"/health", "/health/live", "/health/ready", "/ping"})
"""The only paths without a key, for GET alone: health probes have none."""

MONITORED = frozenset({"/stats", "/metrics"})
"""Paths with statistics of all keys together: for the roles `monitor` and `admin`."""

WATCHED = frozenset({"/xray", "/xray/trace"})
"""Paths with the same statistics step by step, for every role. A client's key has names for its own requests alone."""

PAGE = "/"
"""The path whose HTML is public: the page is the same for everyone. As JSON, its list of routes needs a key."""

_PROCESS_SECRET = secrets.token_bytes(32)


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def check_exposure(config: ServerConfig, keys: Keys, *, loopback: bool) -> str | None:
    """Refuse to serve strangers without keys; return a warning if `no_auth` allows just that.

    Raises ConfigError.
    """
    if keys and config.no_auth:
        raise ConfigError(f"no_auth contradicts api_keys and {VARIABLE}: leave one out")
    if keys or loopback:
        return None
    if not config.no_auth:
        raise ConfigError(
            f"{config.host} is an address that others can reach: make a key (`gradus keys add NAME --file keys.yaml`) "
            f"and serve with --api-keys keys.yaml, or set {VARIABLE}; --no-auth lets anybody use the server"
        )
    return f"listening on {config.host} without API keys (--no-auth): anyone who can reach it can use the model"


class Access:
    """Admits requests with a known key, and requests for public paths.

    secret: see `salt_of`. page: whether the page is served.
    """

    def __init__(
        self, app: ASGIApp, keys: Keys, defaults: KeyLimits, secret: bytes | None = None, *, page: bool = False
    ) -> None:
        self.app = app
        self._page = page
        self._keys = keys
        self._secret = _PROCESS_SECRET if secret is None else secret
        self._defaults = defaults
        self._accounts: dict[str, Account] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif (problem := self._problem(scope)) is not None:
            await problem_response(problem, scope)(scope, receive, send)
        else:
            await self._admitted(scope, receive, send)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        try:
            await self.app(scope, receive, send)
        finally:
            if record.account is not None and record.tally is not None:
                record.account.close(record.tally)

    def _problem(self, scope: Scope) -> Problem | None:
        """Identify the sender. Returns the reason to refuse the request, or None."""
        if not self._keys:
            return None
        record = record_of(scope)
        if record.label and (record.label.startswith(PREFIX) or self._keys.find(record.label)):
            record.label = ""  # never log a key sent in the wrong header
        presented = credentials(scope)
        key = self._find(presented)
        if key is not None:
            record.key, record.salt = key.name, salt_of(key.name, self._secret)
            record.account, record.best_priority = self._account(key), key.first_priority
        if scope["method"] == "GET" and (scope["path"] in PUBLIC or (self._page and asks_for_page(scope))):
            return None
        if key is None:
            return unknown_sender(presented)
        if scope["path"] in WATCHED:
            return None
        monitored = scope["path"] in MONITORED
        if key.role == ("client" if monitored else "monitor"):
            message = f"the role {key.role!r} of this API key does not allow {scope['path'][:100]}"
            return Problem(403, "permission_denied", message, headers=CLOSE)
        return None

    def _find(self, presented: Sequence[str]) -> Key | None:
        self._keys.keep_current()
        return next((key for text in presented if (key := self._keys.find(text)) is not None), None)

    def _account(self, key: Key) -> Account:
        """Return the key's account, which outlives a change of its limits."""
        limits = key.limits.over(self._defaults)
        account = self._accounts.get(key.name)
        if account is None:
            account = self._accounts[key.name] = Account(limits)
        account.limits = limits
        return account


def asks_for_page(scope: Scope) -> bool:
    """Whether a GET is a browser's for the page, not a program's for the list of routes."""
    if scope["path"] != PAGE:
        return False
    return prefers_html(b",".join(value for name, value in scope["headers"] if name == b"accept").decode("latin-1"))


def unknown_sender(presented: Sequence[str]) -> Problem:
    """Refuse a sender who presents no key, or none that is known."""
    what = "this API key is not valid" if presented else "an API key is needed"
    message = f"{what}: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`"
    return Problem(401, "invalid_api_key", message, headers={"www-authenticate": "Bearer", **CLOSE})


def credentials(scope: Scope) -> list[str]:
    """Return the keys that a request presents: at most one in each of two headers, since some SDKs send both."""
    found: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        text = value.decode("latin-1").strip()
        if name == b"x-api-key":
            found.setdefault(name, text)
        elif name == b"authorization":
            scheme, _, key = text.partition(" ")
            if scheme.lower() == "bearer":
                found.setdefault(name, key.strip())
    return [text for text in found.values() if text]


# -- a key's effect on its requests ------------------------------------------------------------------------------------


def salt_of(name: str, secret: bytes = _PROCESS_SECRET) -> bytes:
    """Derive the salt of a key's part of the cache.

    secret: makes it useless elsewhere. It is this process's own, or that of the directory that keeps prefixes, so that
    they are the key's after a restart as well.
    """
    return hashlib.blake2b(name.encode(), key=secret, digest_size=32).digest()


def admitted(record: Record, asks: Sequence[Ask]) -> Sequence[Ask]:
    """Apply the limits of the sender's key, and its own part of the cache.

    Raises QuotaExceeded, or RequestError for more samples than the key may ever have, or a better priority.
    """
    if record.best_priority is not None:
        _check_priority(record.best_priority, asks)
    if record.account is not None:
        record.account.admit(sum(ask.params.n for ask in asks))
    if record.salt is None:
        return asks
    return [dataclasses.replace(ask, scheduling=_salted(ask, record.salt)) for ask in asks]


def _check_priority(best: int, asks: Sequence[Ask]) -> None:
    """Refuse a priority that would put a client ahead of the others without the operator's consent."""
    for ask in asks:
        priority = ask.scheduling.priority
        if priority < best:
            limit = f"between {best} and {MAX_PRIORITY} with this API key (its best_priority)"
            raise RequestError.of("priority", limit, priority)


def _salted(ask: Ask, salt: bytes) -> SchedulingParams:
    own = (ask.scheduling.cache_salt or "").encode("utf-8", "surrogatepass")
    joined = hashlib.blake2b(own, key=salt, digest_size=32).hexdigest()
    return dataclasses.replace(ask.scheduling, cache_salt=joined)
