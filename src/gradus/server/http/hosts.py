"""Checks of a request's origin: it must call the server by one of its names, and not come from another site's page.

A web page may read only the answers of its own origin, and the browser identifies an origin by its name. DNS rebinding
gets around that: the page's name first resolves to its own server, and a moment later to 127.0.0.1. The browser then
sees one origin, but it still sends the page's name as `Host`. So a request may use only a few names: `localhost`
and addresses, which need no DNS and therefore cannot be rebound, and the names that the operator allows.

A page that calls an allowed name is recognized by `Origin`, or by `Sec-Fetch-Site`. Programs send neither.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

from gradus.server.addresses import Host, host_alone, host_and_port, unmapped

Headers = Iterable[tuple[bytes, bytes]]


class OwnHosts:
    """The hosts that requests to this server may name.

    bound: the address that the server listens on, or its name. allowed: additional hosts from the operator.
    origins: other sites whose pages may use the server (CORS). secure: whether the server itself speaks TLS.
    """

    def __init__(
        self, bound: str, allowed: Iterable[str] = (), origins: Iterable[str] = (), *, secure: bool = False
    ) -> None:
        self._origins = frozenset(origins)
        self._scheme, self._port = ("https", 443) if secure else ("http", 80)
        host = host_alone(bound)
        self._everywhere = isinstance(host, IPv4Address | IPv6Address) and host.is_unspecified
        self._allowed = {host_alone(name) for name in allowed}
        self._named = self._allowed | ({"localhost"} if self._everywhere else {"localhost", host})

    def refusal(self, headers: Headers, local: str | None) -> str | None:
        """Return the reason to refuse a request, in one line; None to serve it.

        headers: names in lower case. local: this machine's address on the connection.
        """
        hosts, origins, sites = [], [], []
        for name, value in headers:
            if name == b"host":
                hosts.append(value.decode("latin-1"))
            elif name == b"origin":
                origins.append(value.decode("latin-1"))
            elif name == b"sec-fetch-site":
                sites.append(value)
        if len(hosts) > 1:
            return f"a request must have one Host header, got {len(hosts)}"
        called = host_and_port(hosts[0]) if hosts else None
        # HTTP/1.0 allows a request without Host; every browser sends one
        if hosts and (called is None or not self._is_own(called[0], local)):
            return _wrong_host(hosts[0], called)
        if origins and self._origins.issuperset(origins):
            return None
        for origin in origins:
            if not self._is_own_origin(origin, called):
                return _wrong_origin(origin)
        # a page on another port of localhost is the same site, so only its Origin, checked above, identifies it
        if any(site == b"cross-site" or (site == b"same-site" and not origins) for site in sites):
            return "another site's page may not use this server: enter its address in the browser, or use a program"
        return None

    def _is_own(self, host: Host, local: str | None) -> bool:
        if host in self._named:
            return True
        if isinstance(host, str) or host.is_unspecified:
            return False
        return host.is_loopback or self._everywhere or host == _address(local)

    def _is_own_origin(self, origin: str, called: tuple[Host, int | None] | None) -> bool:
        """Whether a page came from the host and port that it calls, or from an allowed host.

        An allowed host may have any scheme and port: a proxy may well accept https on 443 for it.
        """
        scheme, _, rest = origin.partition("://")
        page = host_and_port(rest)
        if page is None or scheme not in ("http", "https"):
            return False
        if page[0] in self._allowed:
            return True
        if called is None or scheme != self._scheme:
            return False
        return (page[0], page[1] or self._port) == (called[0], called[1] or self._port)


def _address(local: str | None) -> Host | None:
    """Parse a connection's own address. A link-local one includes its interface, as in fe80::1%eth0."""
    return None if local is None else unmapped(ip_address(local.partition("%")[0]))


def _wrong_host(text: str, called: tuple[Host, int | None] | None) -> str:
    if called is None:
        return f"Host must be a name or an address, with a port or without, got {text[:60]!r}"
    name = str(called[0])[:100]
    return f"this server is not called {name!r}: use localhost or its address, or serve with --allowed-host {name}"


def _wrong_origin(origin: str) -> str:
    page = host_and_port(origin.partition("://")[2])
    if page is None:
        return f"a page of origin {origin[:60]!r} may not use this server: send the request from a program"
    name = str(page[0])[:100]
    return f"a page of {origin[:120]!r} may not use this server; if it is yours, serve with --allowed-host {name}"
