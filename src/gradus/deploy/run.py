"""Two applications of Ray Serve, the replicas and the front, and the life of `gradus deploy ray`.

`application` and `front` are also what a cluster's YAML file names (docs/deploy.md). They are two because an update of
the replicas must not replace the front: Ray stops the old one of a deployment before it starts the new one.
"""

import asyncio
import os
import secrets
import signal
import threading
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from gradus import extras
from gradus.config.options import SETTINGS
from gradus.deploy.choice import MAX_IMBALANCE
from gradus.deploy.front import Admitted, Front
from gradus.deploy.replica import Replica
from gradus.errors import ConfigError
from gradus.loading import open_checkpoint
from gradus.server.config import ServerConfig
from gradus.server.failures import Unavailable
from gradus.server.http.access import is_loopback
from gradus.server.http.keys import Keys
from gradus.server.serve import bind

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.handle import DeploymentHandle

NAME, REPLICA, FRONT = "gradus", "replica", "front"
LOADER = "gradus.server.engine.loading"
PUBLISHED_EVERY_S = 2.0
HEALTH_EVERY_S = 2.0
GOODBYE_S = 15.0  # for a replica to end its engine, after its requests
OBJECT_STORE_BYTES = 100 << 20  # Ray's least is 75 MB; only hashes and addresses pass through Ray


@dataclass(frozen=True)
class Plan:
    """A deployment: `replicas` servers with the same settings.

    max_replicas: autoscale up to this many replicas while each has more requests than it can run; None: no autoscaling.
    gpus: that Ray sets aside for each replica, which sees no others. max_imbalance: `choice.MAX_IMBALANCE`. fronts:
    processes that clients connect to, all at the same address.
    loader: the module that loads tokenizer and engine.
    """

    settings: ServerConfig = field(default_factory=ServerConfig)
    replicas: int = 1
    max_replicas: int | None = None
    gpus: float = 0.0
    max_imbalance: int = MAX_IMBALANCE
    fronts: int = 1
    loader: str = LOADER

    def __post_init__(self) -> None:
        if self.replicas < 1 or self.fronts < 1:
            raise ConfigError(f"replicas must be 1 or more, got {self.replicas}; and fronts, got {self.fronts}")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ConfigError(f"max_replicas must be at least replicas ({self.replicas}), got {self.max_replicas}")
        if self.gpus < 0 or self.max_imbalance < 0:
            raise ConfigError(f"gpus and max_imbalance must be 0 or more, got {self.gpus:g} and {self.max_imbalance}")
        if self.settings.tls_cert is not None:
            raise ConfigError("tls_cert: the front speaks HTTP alone; put a proxy with TLS before it")

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> "Plan":
        """Read the `args` of a YAML file: this class's fields, with `settings` as in a file of `gradus serve`."""
        known = [one.name for one in fields(cls)]
        if unknown := sorted(args.keys() - set(known)):
            raise ConfigError(f"args takes {', '.join(known)}, got {unknown[0]!r}")
        return cls(**{**args, "settings": ServerConfig().replaced(args.get("settings") or {})})

    @property
    def running(self) -> int:
        """Requests that a replica's engine runs at once: as set, or as suits the device."""
        given: int | None = self.settings.keywords()["max_sequences"]
        return given or SETTINGS["max_sequences"].suits["cuda" if self.gpus else "cpu"]

    def options(self) -> dict[str, Any]:
        """Return the options of the replicas' deployment."""
        settings = self.settings
        scale: dict[str, Any] = {"num_replicas": self.replicas}
        if self.max_replicas is not None:
            bounds = {"min_replicas": self.replicas, "max_replicas": self.max_replicas}
            scale = {"autoscaling_config": bounds | {"target_ongoing_requests": self.running}}
        return scale | {
            "name": REPLICA,
            "max_ongoing_requests": self.running + settings.max_waiting,
            "max_queued_requests": settings.max_waiting,
            **lasting(settings, self.gpus),
        }


def lasting(settings: ServerConfig, gpus: float = 0.0) -> dict[str, Any]:
    """Return a deployment's options: its health checks, its end, and what Ray sets aside for it."""
    return {
        "graceful_shutdown_timeout_s": settings.drain_timeout + GOODBYE_S,
        "graceful_shutdown_wait_loop_s": 0.1,
        "health_check_period_s": HEALTH_EVERY_S,
        "ray_actor_options": {"num_cpus": 0, "num_gpus": gpus},
    }


def application(args: Mapping[str, Any]) -> "Application":
    """Build the replicas' application from the `args` of a YAML file, see `Plan`. Raises ConfigError."""
    return build(Plan.of(args))


def front(args: Mapping[str, Any]) -> "Application":
    """Build the front's application from the `args` of a YAML file: those of the replicas. Raises ConfigError."""
    return build_front(Plan.of(args))


def build(plan: Plan) -> "Application":
    """Bind the replicas' deployment. Raises ConfigError if Ray is not installed."""
    check_ray()
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    router = RequestRouterConfig(
        request_router_class="gradus.deploy.router.PrefixRouter",
        request_router_kwargs={"max_imbalance": plan.max_imbalance},
        request_routing_stats_period_s=PUBLISHED_EVERY_S,
    )
    replica = serve.deployment(RayReplica, request_router_config=router, **plan.options())
    return replica.bind(plan.settings, plan.loader, bool(Keys.of(plan.settings)))


def build_front(plan: Plan) -> "Application":
    """Bind the front's deployment. Raises ConfigError if Ray is not installed."""
    check_ray()
    from ray import serve

    deployment = serve.deployment(RayFront, name=FRONT, num_replicas=plan.fronts, **lasting(plan.settings))
    return deployment.bind(plan.settings, secrets.token_bytes(32))


class RayReplica(Replica):
    """`Replica` with a constructor and a destructor that Ray awaits: a replica that is up has its model."""

    async def __init__(self, config: ServerConfig, loader: str, keyed: bool) -> None:  # type: ignore[misc]
        from ray.util import get_node_ip_address

        here = config.host == "localhost" or is_loopback(config.host)
        Replica.__init__(self, config, loader, keyed, "127.0.0.1" if here else get_node_ip_address())
        await self.start()

    async def __del__(self) -> None:
        await self.close()


class RayFront(Front):
    """`Front` over a handle of the replicas. Several on one machine listen on the same port."""

    async def __init__(self, config: ServerConfig, secret: bytes) -> None:  # type: ignore[misc]
        self._handle = (await handle_of_replicas()).options(stream=True)
        Front.__init__(self, config, secret, self._from_replica)
        await self.start(bind(config, shared=True))

    async def __del__(self) -> None:
        await self.close(self.config.drain_timeout)

    async def _from_replica(self, hashes: tuple[int, ...]) -> AsyncGenerator[Admitted, None]:
        """Yield a replica's admission. If the client leaves first, the admission is cancelled."""
        from ray.serve.exceptions import BackPressureError

        response = self._handle.admit.remote(hashes)
        try:
            async for admitted in response:
                yield admitted
        except BackPressureError as error:
            raise Unavailable("all replicas are full; try again in 1 s", "overloaded", 1) from error
        finally:
            response.cancel()


async def handle_of_replicas() -> "DeploymentHandle":
    """Wait for the replicas' application: Ray starts the applications of a file in any order."""
    from ray import serve
    from ray.serve.exceptions import RayServeException

    while True:
        try:
            return serve.get_deployment_handle(REPLICA, NAME)
        except RayServeException:
            await asyncio.sleep(0.2)


def check_ray() -> None:
    """Raise ConfigError if Ray Serve is not installed."""
    try:
        import ray.serve  # noqa: F401
    except ImportError as error:
        raise extras.missing("ray", "gradus deploy ray") from error


# -- on this machine ---------------------------------------------------------------------------------------------------


def deploy(plan: Plan) -> int:
    """Deploy on this machine, in a Ray of our own, until SIGTERM or SIGINT; then drain. Returns the exit code.

    Raises ConfigError, see `start`, or the GradusError of a model that cannot be found.
    """
    check_ray()
    if plan.loader == LOADER:
        open_checkpoint(plan.settings.model)  # a mistake is reported here in one line, by a replica in Ray's logs
    plan = start(plan)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # once Ray has set its own handlers, which would not drain
        signal.signal(number, lambda *_: stop.set())
    print(f"gradus: {plan.replicas} replicas of {plan.settings.model} at {address(plan)}", flush=True)
    stop.wait()
    end()
    return 0


def start(plan: Plan) -> Plan:
    """Start Ray and the application, and wait until the replicas have their models. Returns the plan with its port.

    Raises ConfigError if the port is taken, the address needs keys, or the replicas cannot be started.
    """
    with bind(plan.settings) as listening:
        plan = replace(plan, settings=replace(plan.settings, port=listening.getsockname()[1]))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports its use to its makers otherwise
    import ray
    from ray import serve

    ray.init(
        address="local",
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        num_gpus=None if plan.gpus else 0,
        log_to_driver=plan.settings.log_level == "debug",
        logging_level="warning",
    )
    try:
        serve.start(proxy_location="Disabled")
        serve.run(build(plan), name=NAME, route_prefix=None)
        serve.run(build_front(plan), name=FRONT, route_prefix=None)
    except RuntimeError as error:
        end()
        raise ConfigError(f"the replicas could not be started: {last_line(error)}") from error
    return plan


def end() -> None:
    """Let running requests end, for as long as the drain timeout, and stop everything that `start` has started."""
    import ray
    from ray import serve

    serve.delete(FRONT)  # first: its requests need the replicas
    serve.delete(NAME)
    serve.shutdown()
    ray.shutdown()


def address(plan: Plan) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(plan.settings.host, plan.settings.host)
    return f"http://[{host}]:{plan.settings.port}" if ":" in host else f"http://{host}:{plan.settings.port}"


def last_line(error: Exception) -> str:
    """Return the last line of Ray's report, which holds the replica's own error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
