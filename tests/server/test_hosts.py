"""A page that is not ours gets nothing: not by a name rebound to this machine, and not by asking across sites."""

import logging
import time

import httpx
import pytest

from gradus.errors import ConfigError
from gradus.server.addresses import host_alone
from gradus.server.config import ServerConfig
from gradus.server.http.hosts import OwnHosts
from tests.server.conftest import PLAIN, read_answer, running


def refusal(*headers, bound="127.0.0.1", allowed=(), local="127.0.0.1"):
    """The refusal of a request with these headers, as ("host", "localhost")."""
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return OwnHosts(bound, allowed).refusal(raw, local)


def taken(host, **where):
    return refusal(("host", host), **where) is None


LOOPBACK = [
    "localhost",
    "localhost:8000",
    "LocalHost:8000",
    "localhost.",
    "localhost:",
    "127.0.0.1",
    "127.0.0.1:8000",
    "127.0.0.1.:8000",
    "127.8.9.10:1",
    "[::1]",
    "[::1]:8000",
    "[0:0:0:0:0:0:0:1]:8000",
    "[::ffff:127.0.0.1]:8000",
    "[::FFFF:7f00:1]",
]

FOREIGN = [
    "evil.com",
    "evil.com:8000",
    "127.0.0.1.evil.com",
    "localhost.evil.com",
    "evil.localhost",
    "notlocalhost",
    "localhost..",
    "localhost:8000:8000",
    "localhost:80a",
    "localhost:123456",
    "localhost,evil.com",
    "localhost evil.com",
    "localhost/",
    "localhost#evil.com",
    "user@localhost",
    "localhost:8000@evil.com",
    "evil.com@127.0.0.1",
    "%6cocalhost",
    "127.0.0.1%2eevil.com",
    "localhost%00",
    "localhost\n",
    "l\u00f6calhost",
    "127.1",
    "2130706433",
    "0x7f.0.0.1",
    "0127.0.0.1",
    "0.0.0.0",
    "0.0.0.0:8000",
    "[::]",
    "::1",
    "[127.0.0.1]",
    "[::1%25lo]",
    "[::1%lo]",
    "[::1",
    "::1]:8000",
    "[localhost]",
    "[fe80::1]",
    "[::ffff:8.8.8.8]",
    "8.8.8.8",
    "http://localhost",
    "*",
    ".",
    "",
    "a" * 30_000,
]


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_answers_to_its_own_names(host):
    assert taken(host)


@pytest.mark.parametrize("host", FOREIGN)
def test_loopback_answers_to_no_other_name(host):
    message = refusal(("host", host))
    assert message is not None and "\n" not in message and len(message) < 300


def test_the_refusal_says_how_to_allow_the_name():
    assert refusal(("host", "gradus.lan:80")) == (
        "this server is not called 'gradus.lan': use localhost or its address, or serve with --allowed-host gradus.lan"
    )


@pytest.mark.parametrize(
    "name", ["gradus.example.org", "GRADUS.Example.org.", "app.localhost", "10.1.2.3", "2001:db8::7"]
)
def test_an_allowed_name_is_answered_whatever_its_port_and_case(name):
    called = f"[{name}]" if ":" in name else name.lower().rstrip(".")
    assert not taken(called)
    assert taken(called, allowed=[name]) and taken(f"{called.upper()}:443", allowed=[name])
    assert not taken("evil.com", allowed=[name])


def test_a_bound_address_is_a_name_of_its_own():
    at = {"bound": "10.0.0.5", "local": "10.0.0.5"}
    assert taken("10.0.0.5:8000", **at) and taken("[::ffff:10.0.0.5]", **at) and taken("localhost:9000", **at)
    assert not taken("10.0.0.6", **at) and not taken("10.0.0.5.evil.com", **at) and not taken("evil.com", **at)


def test_a_bound_name_is_a_name_of_its_own():
    assert taken("box.lan:8000", bound="box.lan", local="10.0.0.5")
    assert taken("10.0.0.5:8000", bound="box.lan", local="10.0.0.5")
    assert not taken("evil.com", bound="box.lan", local="10.0.0.5")


@pytest.mark.parametrize(("bound", "local"), [("0.0.0.0", "172.17.0.2"), ("::", "::ffff:172.17.0.2")])
def test_bound_to_every_address_it_answers_to_any_address_but_to_no_name(bound, local):
    """A health probe calls the address that it knows, which a router may have translated. No DNS leads there."""
    for host in ("192.168.1.5:8000", "[2001:db8::7]:8000", "172.17.0.2", "127.0.0.1", "localhost"):
        assert taken(host, bound=bound, local=local)
    for host in ("evil.com", "0.0.0.0:8000", "[::]:8000", "192.168.1.5.evil.com"):
        assert not taken(host, bound=bound, local=local)


def test_a_link_local_address_is_known_without_its_interface():
    assert taken("[fe80::1]:8000", bound="fe80::1%eth0", local="fe80::1%eth0")


def test_a_request_has_one_host_and_only_an_old_client_has_none():
    assert refusal() is None
    assert refusal(("host", "localhost"), ("host", "localhost")) == "a request must have one Host header, got 2"


OWN = ("host", "localhost:8000")


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.com",
        "http://evil.com:8000",
        "http://localhost",  # port 80
        "http://localhost:3000",  # another server of this machine
        "https://localhost:8000",
        "ftp://localhost:8000",
        "http://localhost:8000.evil.com",
        "http://localhost:8000@evil.com",
        "http://user@localhost:8000",
        "http://127.0.0.1:8000",  # this server, but to a browser another origin than the one it calls
        "chrome-extension://abcdefgh",
        "file://",
        "localhost:8000",
        "null",
        "",
    ],
)
def test_a_page_from_elsewhere_is_refused(origin):
    message = refusal(OWN, ("origin", origin))
    assert message is not None and "\n" not in message and "may not use this server" in message
    assert refusal(OWN, ("origin", "http://localhost:8000"), ("origin", origin)) is not None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("LOCALHOST:8000", "http://localhost:8000"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("127.0.0.1:9000", "http://127.0.0.1:9000"),  # as published by docker -p 9000:8000, or by ssh -L
    ],
)
def test_a_page_of_our_own_is_served(host, origin):
    assert refusal(("host", host), ("origin", origin), ("sec-fetch-site", "same-origin")) is None


@pytest.mark.parametrize("origin", ["https://chat.example.org", "http://chat.example.org:8080"])
@pytest.mark.parametrize("host", ["chat.example.org", "127.0.0.1:8000"])  # a proxy passes Host on, or sets its own
def test_a_proxy_has_an_allowed_name_with_a_scheme_and_port_of_its_own(host, origin):
    headers = ("host", host), ("origin", origin), ("sec-fetch-site", "same-origin")
    assert refusal(*headers, allowed=["chat.example.org"]) is None
    assert refusal(*headers) is not None


def test_an_origin_without_a_host_to_compare_it_with_is_foreign():
    assert refusal(("origin", "http://localhost:8000")) is not None


@pytest.mark.parametrize(
    ("site", "served"), [("none", True), ("same-origin", True), ("cross-site", False), ("same-site", False)]
)
def test_a_browser_says_when_a_request_comes_from_another_site(site, served):
    """An image or a link sends no Origin. `none` is an address that a person entered."""
    assert (refusal(OWN, ("sec-fetch-site", site)) is None) == served


def test_another_page_of_the_same_site_needs_an_allowed_origin():
    headers = OWN, ("origin", "https://app.example.org"), ("sec-fetch-site", "same-site")
    assert refusal(*headers, allowed=["app.example.org"]) is None
    assert refusal(*headers) is not None
    crossing = OWN, ("origin", "https://app.example.org"), ("sec-fetch-site", "cross-site")
    assert refusal(*crossing, allowed=["app.example.org"]) is not None


@pytest.mark.parametrize(
    "text", ["http://a.org", "a.org:80", "a.org/", "*", "*.a.org", "", "b\u00fccher.de", "a b", "[::1]:80", "[::1"]
)
def test_only_a_bare_name_can_be_allowed(text):
    assert host_alone(text) is None
    with pytest.raises(ConfigError, match=r"^allowed_hosts takes names and addresses without scheme, port or path"):
        ServerConfig(allowed_hosts=(text,))


def test_a_check_costs_microseconds():
    hosts = OwnHosts("127.0.0.1")
    headers = [(b"accept", b"*/*")] * 12 + [(b"host", b"127.0.0.1:8000"), (b"origin", b"http://127.0.0.1:8000")]
    best = min(seconds_of(lambda: hosts.refusal(headers, "127.0.0.1")) for _ in range(20))
    assert best < 200e-6  # some 10 µs on an idle core


def seconds_of(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# -- over real sockets -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with running(allowed_hosts=["gradus.example.org"]) as server:
        yield server


ROUTES = ["/", "/health", "/health/live", "/stats", "/metrics", "/openapi.json", "/generate", "/nowhere", "/%2e%2e/x"]


@pytest.mark.parametrize("headers", [{"Host": "evil.com"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD", "PROPFIND"])
@pytest.mark.parametrize("path", ROUTES)
def test_no_route_and_no_error_is_for_others(server, path, method, headers):
    answer = server.http.request(method, path, headers=headers)
    assert answer.status_code == 403
    if method != "HEAD":
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "limit", "got", "code"}
        assert (error["type"], error["code"]) == ("invalid_request", 403)


def test_a_rebound_page_cannot_generate(server):
    before = server.stats()["completed"]
    body = {"prompt": "a", "max_tokens": 1}
    evil = f"evil.com:{server.port}"
    answer = server.http.post("/generate", json=body, headers={"Host": evil, "Origin": f"http://{evil}"})
    assert answer.status_code == 403 and server.stats()["completed"] == before
    assert server.http.post("/generate", json=body).status_code == 200


def test_a_proxy_is_served_by_the_name_that_was_allowed(server):
    headers = {"Host": "gradus.example.org", "Origin": "https://gradus.example.org"}
    assert server.http.post("/generate", json={"prompt": "a", "max_tokens": 1}, headers=headers).status_code == 200


def asked(server, text):
    """(status, body) for a request head as raw text."""
    with server.connect() as connection:
        connection.sendall(text.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        status, _, body = read_answer(connection)
        return status, body


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("GET /health HTTP/1.0", 200),  # a load balancer's probe
        ("GET /health HTTP/1.0\nHost: evil.com", 403),
        ("GET /health HTTP/1.1", 400),
        ("GET /health HTTP/1.1\nHost: localhost\nHost: evil.com", 400),
        ("GET /health HTTP/1.1\nHost:", 403),
        ("GET /health HTTP/1.1\nHost: [::1]:8000", 200),
        ("GET /health HTTP/1.1\nhOsT:    LOCALHOST.:8000   ", 200),
        ("GET http://evil.com/health HTTP/1.1\nHost: evil.com", 400),
        ("GET http://localhost/health HTTP/1.1\nHost: evil.com", 400),
        ("GET http://evil.com/health HTTP/1.1\nHost: localhost", 400),  # no route is reached by an absolute target
        ("GET //evil.com/health HTTP/1.1\nHost: localhost", 404),
        ("OPTIONS * HTTP/1.1\nHost: evil.com", 403),
        ("GET /health HTTP/1.1\nHost: evil.com\nX-Forwarded-Host: localhost", 403),
        ("GET /health HTTP/1.1\nHost: localhost\nX-Forwarded-Host: evil.com", 200),
    ],
)
def test_odd_requests(server, text, wanted):
    status, body = asked(server, text)
    assert status == wanted
    assert status == 200 or b'"engine"' not in body


def test_bound_to_every_address_a_probe_by_address_is_served(caplog):
    with caplog.at_level(logging.CRITICAL), running(host="0.0.0.0", no_auth=True) as server:
        for host, wanted in (("192.168.1.5:8000", 200), (f"localhost:{server.port}", 200), ("evil.com", 403)):
            assert httpx.get(f"{server.url}/health", headers={"Host": host}, **PLAIN).status_code == wanted
