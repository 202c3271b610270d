"""The process: bind, load, serve, drain, and exit with a meaningful code.

The socket is bound first, so that a busy port is reported before minutes of loading. HTTP answers while the model
loads, so that /health says "loading" instead of refusing the connection.
"""

import asyncio
import json
import logging
import os
import socket
import sys
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

try:
    import uvloop
except ImportError:  # not available on every platform
    LOOP = "asyncio"
else:
    LOOP = uvloop.__name__

from gradus.cache.capacity import sessions_in_words
from gradus.errors import ConfigError
from gradus.loading.default_sampling import in_words
from gradus.server import logs
from gradus.server.api.openai import in_force
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.engine.messages import ModelInfo
from gradus.server.http.access import check_exposure, is_loopback
from gradus.server.http.app import create_app
from gradus.server.http.keys import Keys
from gradus.server.http.protocol import protocol_with_deadline
from gradus.server.http.tls import tls_options
from gradus.server.models.registry import Models
from gradus.server.notify import Manager

log = logging.getLogger(__name__)

# Seconds for clients to read their last bytes once no request runs.
LAST_BYTES_S = 1


def serve(config: ServerConfig, loader: str = "gradus.server.engine.loading") -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code: 0 after a drain, 1 if the engine failed meanwhile.

    loader: the name of the module that loads tokenizer and engine.
    Raises ConfigError (the port is busy), the GradusError that ended loading, or RuntimeError for a bug in loading,
    described in the log. Nothing is left running then.
    """
    logs.set_up(config)
    listening = bind(config)
    models = Models.of(config, loader)
    server = Server(config, models)
    server.run(sockets=[listening])
    if server.load_error is not None:
        raise server.load_error
    code = 1 if models.failed else 0
    if not models.stopped:
        # A thread inside a kernel can neither be interrupted nor safely left running at interpreter exit.
        log.warning("leaving without waiting for the engine's current step")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)
    return code


def bind(config: ServerConfig, *, shared: bool = False) -> socket.socket:
    """Bind a socket. shared: other processes of this user may bind the same port, and share its connections.

    Raises ConfigError if the address is taken or not this machine's, or if strangers could reach it without a key.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if warning := check_exposure(config, Keys.of(config), loopback=is_loopback(str(address[0]))):
            log.warning("%s", warning)
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "choose another --host or --port"
        if "MAKELEVEL" in os.environ:
            advice += '; with make: ARGS="--port 9000"'
        raise ConfigError(f"cannot listen on {config.host} port {config.port}: {reason.lower()}; {advice}") from error
    return bound


class Server(uvicorn.Server):
    """uvicorn with its own signal handling: the first signal drains, the second ends running requests at once.

    served: the models, or the only one's client. app: one around that of `create_app`, if anything is.
    """

    def __init__(self, config: ServerConfig, served: Models | EngineClient, app: ASGIApp | None = None) -> None:
        models = served if isinstance(served, Models) else Models(served)
        super().__init__(
            uvicorn.Config(
                app or create_app(models.first, config, models),
                http=protocol_with_deadline(config.receive_timeout, models.first.outbox),
                loop=LOOP,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # a client's claim about its address is not trusted
                timeout_graceful_shutdown=LAST_BYTES_S,
                **tls_options(config),
            )
        )
        self.models = models
        self.client = models.first  # whose load ends the start
        self.load_error: Exception | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._manager = Manager.of(os.environ)
        self._following: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The address it listens on once started, with the real port even if 0 was requested."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return host, port

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        if self.started:
            self._announcing = self.loop.create_task(self._announce(*self.address))
            if self._manager is not None:
                self._following = self.loop.create_task(self._manager.follow(list(self.models)))

    async def _announce(self, host: str, port: int) -> None:
        """Print how to reach the server once the model is loaded; a server that is closing may listen no longer. Leave
        when the engine has failed too often, if another process then starts the server again."""
        try:
            info = await self.models.loaded()
        except Exception as error:
            self.load_error = error
            self.should_exit = True
        else:
            if info.sessions:
                log.info("%s", cache_line(info))
            logs.announce(self.client.config, ready_line(info, self.client.config, host, port), sys.stdout)
            if self._manager is not None:
                self._manager.ready()
            if leaves_on_failure(self.client.config):
                given_up = [asyncio.ensure_future(client.supervisor.given_up.wait()) for client in self.models]
                await asyncio.wait(given_up, return_when=asyncio.FIRST_COMPLETED)
                log.error("leaving with status 1, so that the service manager starts the server again")
                self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal. uvicorn's own handler would stop listening at once, and end the process by the same
        signal."""
        if self.started:
            self.loop.call_soon_threadsafe(self.stop)
        else:
            self.should_exit = True

    def stop(self) -> None:
        """Drain and exit. The second call ends running requests after their last outputs, the third without them."""
        if self._draining is None:
            if self._manager is not None:
                self._manager.stopping()
            log.info("draining for at most %g s; one more signal stops at once", self.client.config.drain_timeout)
            self._draining = self.loop.create_task(self._drain())
        elif not self.models.hurried:
            self.models.hurry()
        else:
            self.models.abandon()  # tasks that are cancelled instead would each write a traceback
            self.should_exit = True

    async def _drain(self) -> None:
        """Drain while still listening, so that new requests get a 503 that says so."""
        await self.models.drain(self.client.config.drain_timeout)
        self.should_exit = True


def leaves_on_failure(config: ServerConfig) -> bool:
    """Whether the server exits once its engine has failed too often. Only systemd's variable with the service's own
    process number is asked: shells of a desktop have the others, too."""
    if config.on_failure != "auto":
        return config.on_failure == "exit"
    return os.getpid() == 1 or os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())


def cache_line(info: ModelInfo) -> str:
    """Format one line with the cache's tokens and the sequences of each length that run at once, then the evicted ones
    that host_cache keeps."""
    sessions, kept = (
        {int(length): count for length, count in counts.items()} for counts in (info.sessions, info.kept_sessions)
    )
    held = sessions_in_words(sessions, info.settings["max_sequences"])
    behind = f"; host_cache keeps {sessions_in_words(kept)}" if kept else ""
    return f"the cache holds {info.settings['cache_tokens']:,} tokens: {held}{behind}"


def ready_line(info: ModelInfo, config: ServerConfig, host: str, port: int) -> str:
    """Format one line with everything needed to try the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "http" if config.tls_cert is None else "https"
    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    key = ' -H "Authorization: Bearer $GRADUS_API_KEY"' if Keys.of(config) else ""
    engine = f"phase {info.phase}" if info.engine == info.phase else f"{info.engine} engine"
    weights = f", {info.weight_bytes / 1e9:.3g} GB of weights" if info.weight_bytes else ""
    sampling = in_words(*in_force(info))
    name = config.names[0] if config.names else info.model
    page = f"page: {url}/ · " if config.page else ""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 32})
    return (
        f"gradus: serving {name} ({engine}, {info.device}, {info.dtype}{weights}) at {url} · "
        f"{page}default sampling: {sampling} · try: "
        f"curl -s {url}/generate{key} -H 'Content-Type: application/json' -d '{body}'"
    )
