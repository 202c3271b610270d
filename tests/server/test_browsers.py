"""Pages that the operator allows (CORS), and certificates (TLS)."""

import ssl
from pathlib import Path

import httpx
import pytest

from gradus.errors import ConfigError
from gradus.server.config import ServerConfig
from gradus.server.http.keys import VARIABLE
from gradus.server.http.tls import tls_options
from tests.server.conftest import PLAIN, Process, running

HERE = Path(__file__).parent
CERT, KEY = str(HERE / "localhost.cert.pem"), str(HERE / "localhost.key.pem")  # valid until 2126, for these tests alone
PAGE, OTHER = "https://chat.example.org", "https://evil.example.org"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}


@pytest.fixture(scope="module")
def server():
    with running(cors_origins=[PAGE]) as server:
        yield server


def post(server, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.http.post("/generate", json={"prompt": "a", "max_tokens": 1}, headers=headers)


def test_an_allowed_page_may_ask_and_read(server):
    answer = post(server, origin=PAGE, sec_fetch_site="cross-site")
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE and "origin" in answer.headers["vary"].lower()
    assert "access-control-allow-credentials" not in answer.headers
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    asked = server.http.options("/generate", headers={"origin": PAGE, **PREFLIGHT})
    assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in asked.headers["access-control-allow-headers"]


@pytest.mark.parametrize("origin", [OTHER, PAGE.replace("https", "http"), f"{PAGE}:8443", f"{PAGE}.evil.org", "null"])
def test_no_other_page_may(server, origin):
    for answer in (
        post(server, origin=origin),
        server.http.options("/generate", headers={"origin": origin, **PREFLIGHT}),
        server.http.get("/health", headers=[("origin", PAGE), ("origin", origin)]),
    ):
        assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers


def test_by_default_no_page_may(serving):
    answer = post(serving(), origin=PAGE)
    assert answer.status_code == 403 and not [name for name in answer.headers if name.startswith("access-control")]


def test_a_preflight_needs_no_key_because_browsers_send_none_but_the_request_does(monkeypatch):
    monkeypatch.setenv(VARIABLE, "a-key-of-my-own-choice")
    with running(cors_origins=[PAGE]) as server:
        asked = server.http.options("/generate", headers={"origin": PAGE, **PREFLIGHT})
        assert asked.status_code == 200
        assert server.http.options("/generate", headers={"origin": PAGE}).status_code == 401
        refused = post(server, origin=PAGE)
        assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == PAGE
        assert post(server, origin=PAGE, authorization="Bearer a-key-of-my-own-choice").status_code == 200


@pytest.mark.parametrize(
    "origin", ["*", "chat.example.org", "https://a.org/", "https://A.org", "ftp://a.org", "null", ""]
)
def test_only_an_origin_can_be_allowed(origin):
    with pytest.raises(ConfigError, match="cors_origins takes origins such as https://chat"):
        ServerConfig(cors_origins=(origin,))


# -- TLS ---------------------------------------------------------------------------------------------------------------


def test_with_a_certificate_it_speaks_https_and_nothing_else():
    trust = ssl.create_default_context(cafile=CERT)
    with Process(port=0, tls_cert=CERT, tls_key=KEY) as server:
        url = server.ready().replace("127.0.0.1", "localhost")
        assert url.startswith("https://localhost:")
        with httpx.Client(base_url=url, verify=trust, trust_env=False) as client:
            assert client.get("/health").json()["status"] == "ready"
            body = {"prompt": "a", "max_tokens": 2}
            assert client.post("/generate", json=body, headers={"origin": url}).status_code == 200
            plain = url.replace("https", "http")
            assert client.post("/generate", json=body, headers={"origin": plain}).status_code == 403
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https", "http") + "/health", **PLAIN)
        server.signal()
        assert server.end()[0] == 0


@pytest.mark.parametrize(
    ("cert", "key", "says"),
    [
        (CERT, None, "belong together"),
        (None, KEY, "belong together"),
        (KEY, KEY, "tls_cert"),
        (CERT, "/no/such/file", "no such file"),
    ],
)
def test_files_that_are_no_pair_are_refused_in_one_line(cert, key, says):
    with pytest.raises(ConfigError) as caught:
        tls_options(ServerConfig(tls_cert=cert, tls_key=key))
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert tls_options(ServerConfig()) == {}
