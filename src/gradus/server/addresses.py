"""Hosts and origins, as settings and requests name them."""

import re
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

Host = str | IPv4Address | IPv6Address

# a name of dotted labels, an IPv4 address or a bracketed IPv6 address; a final dot is allowed, as in a full DNS name
_HOST_AND_PORT = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?(?::([0-9]{0,5}))?")


def host_and_port(text: str) -> tuple[Host, int | None] | None:
    """Split `localhost:8000` or `[::1]`: a name in lower case or an address, and its port. None if it is neither."""
    match = _HOST_AND_PORT.fullmatch(text.lower())
    if match is None:
        return None
    host: Host = match[1]
    try:
        host = unmapped(IPv6Address(match[1][1:-1]) if match[1].startswith("[") else IPv4Address(match[1]))
    except ValueError:
        if match[1].startswith("["):
            return None
    return host, int(match[2]) if match[2] else None


def host_alone(text: str) -> Host | None:
    """Parse a host without a port, an IPv6 address with or without brackets. None if it is anything else."""
    host = f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text
    parts = host_and_port(f"{host}:0")
    return None if parts is None else parts[0]


def is_origin(text: str) -> bool:
    """Whether a browser could send this text as `Origin`: a scheme, a host in lower case, a port or none, no path."""
    scheme, _, rest = text.partition("://")
    parts = host_and_port(rest)
    return scheme in ("http", "https") and parts is not None and text == text.lower() and not rest.endswith((".", ":"))


def traces_url(text: str) -> str | None:
    """Complete the URL of a collector that takes traces by OTLP over HTTP: without a path it is /v1/traces. None if the
    text is no such URL, or holds credentials, which would come into logs."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    if not good or "@" in parts.netloc or parts.query or parts.fragment or not text.isprintable():
        return None
    return f"{parts.scheme}://{parts.netloc}{parts.path if parts.path.strip('/') else '/v1/traces'}"


def unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address inside an IPv6 one such as ::ffff:127.0.0.1; any other address unchanged."""
    return getattr(address, "ipv4_mapped", None) or address
