"""Extras: packages that some commands need and `LLM` does not. One line names an extra that is missing."""

from importlib.util import find_spec

from gradus.errors import ConfigError

SERVER = ("fastapi", "starlette", "uvicorn", "httptools", "prometheus_client")
OTEL = ("opentelemetry.trace", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
EXTRAS = {"server": SERVER, "plots": ("matplotlib",), "otel": OTEL, "ray": (*SERVER, "h11")}
"""The modules that each extra of pyproject.toml installs. Left out: uvloop, which some systems lack, and Ray, which may
be there without Ray Serve; `gradus.deploy.run.check_ray` imports that.
"""


def require(extra: str, what: str) -> None:
    """Raise ConfigError, naming the extra, if one of its modules is not installed. what: what needs it."""
    if any(is_absent(module) for module in EXTRAS[extra]):
        raise missing(extra, what)


def is_absent(module: str) -> bool:
    """Whether a module is not installed. Looking a dotted name up imports the packages around it."""
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:
        return True


def missing(extra: str, what: str) -> ConfigError:
    """Make the error of an extra that is not installed: one line, with the command that installs it."""
    absent = ", ".join(module for module in EXTRAS[extra] if is_absent(module))
    lacks = f" ({absent} not found)" if absent else ""
    return ConfigError(f"{what} needs the extra '{extra}'{lacks}: run pip install -e '.[{extra}]' in the clone")
