"""Keys: without one, every route that is not in a list of four refuses; with one, a tenant meets no other."""

import logging
import os
import re
import stat
from functools import partial
from pathlib import Path

import pytest

from gradus.engine.request import SamplingParams, SchedulingParams
from gradus.errors import ConfigError, RequestError
from gradus.server.config import KeyLimits, ServerConfig
from gradus.server.exchange import Ask
from gradus.server.http.access import PAGE, PUBLIC, admitted, check_exposure, salt_of
from gradus.server.http.keys import VARIABLE, Key, Keys, digest_of, new_key, read_keys, write_keys
from gradus.server.http.record import Record
from tests.server.conftest import eventually, running, tiny_llm
from tests.server.scripted import ScriptedCore

ALICE, BOB, WATCH, ROOT = (new_key() for _ in range(4))
EVERYONE = {
    "alice": Key("alice", digest_of(ALICE)),
    "bob": Key("bob", digest_of(BOB)),
    "watch": Key("watch", digest_of(WATCH), "monitor"),
    "root": Key("root", digest_of(ROOT), "admin"),
}


def bearer(key):
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    write_keys(path, EVERYONE)
    return path


@pytest.fixture(scope="module")
def server(file):
    with running(api_keys=str(file)) as server:
        yield server


# -- default deny ------------------------------------------------------------------------------------------------------


def routes(server):
    """(method, path) of every route of the application, whoever added it."""
    app = server.server.config.app
    return {(method, route.path) for route in app.routes for method in route.methods}


def test_every_route_that_is_not_public_refuses_without_a_key(server):
    assert len(PUBLIC) <= 4
    found = routes(server)
    assert {("POST", "/generate"), ("GET", "/stats"), ("GET", "/metrics"), ("GET", "/openapi.json")} <= found
    for method, path in found:
        answer = server.http.request(method, path.replace("{", "").replace("}", ""))
        public = path in PUBLIC and method == "GET"
        assert (answer.status_code == 401) != public, (method, path)
        if not public:
            assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND"])
@pytest.mark.parametrize(
    "path",
    ["/generate", "/stats", "/", "/nowhere", "//health", "/health/", "/health//live", "/health/../stats", "/HEALTH",
     "/%73tats", "/health%2f..%2fstats", "/health%00", "/health;x", "/ping.json", "/v1/models", "/openapi.json"],
)  # fmt: skip
def test_no_method_and_no_spelling_of_a_path_gets_around_the_key(server, method, path):
    status, _ = asked(server, method, path)
    assert status == 401


@pytest.mark.parametrize("path", sorted(PUBLIC))
def test_public_paths_answer_probes_without_a_key(server, path):
    assert asked(server, "GET", path)[0] == 200
    assert asked(server, "GET", path + "?x=1")[0] == 200
    assert asked(server, "HEAD", path)[0] == 200
    assert asked(server, "POST", path)[0] == asked(server, "PUT", path)[0] == 401
    assert asked(server, "GET", path, key=ALICE)[0] == 200


@pytest.mark.parametrize("host", ["x/docs?", "x/health?", "localhost/health?", "localhost/health#", "localhost/health"])
def test_a_host_header_changes_no_path(server, host):
    """CVE-2026-48746 and CVE-2026-48710: `request.url.path` came out of the Host header, and authorization with it."""
    status, body = asked(server, "GET", "/stats", host=host)
    assert status in (400, 401, 403) and b"uptime" not in body
    status, body = asked(server, "GET", "/stats", host=host, key=ROOT)
    assert status in (400, 403)


def test_an_encoded_public_path_is_the_path_that_the_router_sees(server):
    assert asked(server, "GET", "/%68ealth")[0] == 200


def asked(server, method, path, host="localhost", key=None):
    """(status, body) of a request whose target and Host are sent as they are."""
    with server.connect() as connection:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
        lines += [f"Authorization: Bearer {key}"] if key else []
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        connection.settimeout(20)
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/messages"])
def test_a_refusal_has_the_shape_of_the_paths_protocol(server, path):
    answer = server.http.post(path, json={})
    error = answer.json()["error"]
    assert answer.status_code == 401 and "an API key is needed" in error["message"]
    if path == "/v1/messages":
        assert answer.json()["type"] == "error" and error["type"] == "authentication_error"
    elif path == "/generate":
        assert (error["type"], error["code"]) == ("invalid_api_key", 401)
    else:
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


def test_the_page_of_the_docs_names_the_public_paths_and_no_other():
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    table = page.split("| public path | |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(/\S*)`", table, re.MULTILINE)) == PUBLIC | {PAGE}


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {ALICE}"},
        {"authorization": f"bearer   {ALICE}"},
        {"x-api-key": ALICE},
        {"x-api-key": "dummy", "authorization": f"Bearer {ALICE}"},
        {"x-api-key": ALICE, "authorization": "Bearer dummy"},
    ],
)
def test_a_key_comes_in_either_header(server, headers):
    answer = server.http.post("/generate", json={"prompt": "a", "max_tokens": 2}, headers=headers)
    assert answer.status_code == 200 and answer.json()["token_ids"] == [0, 1]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": ALICE},
        {"authorization": f"Basic {ALICE}"},
        {"authorization": f"Bearer {ALICE[:-1]}"},
        {"authorization": f"Bearer {ALICE}x"},
        {"authorization": f"Bearer {ALICE.lower()}"},
        {"authorization": f"Bearer {digest_of(ALICE).hex()}"},
        {"authorization": b"Bearer \xff\xfe"},
        {"x-api-key": "alice"},
        {"cookie": f"api_key={ALICE}"},
    ],
)
def test_nothing_else_is_a_key(server, headers):
    assert server.http.get("/", headers=headers).status_code == 401
    assert server.http.get(f"/?api_key={ALICE}", headers=headers).status_code == 401


def test_repeated_headers_do_not_offer_many_keys(server):
    many = [("x-api-key", f"guess-{number}") for number in range(20)] + [("x-api-key", ALICE)]
    assert server.http.get("/", headers=many).status_code == 401


@pytest.mark.parametrize(
    ("key", "stats", "generate"),
    [(ALICE, 403, 200), (WATCH, 200, 403), (ROOT, 200, 200)],
    ids=["client", "monitor", "admin"],
)
def test_a_role_decides_about_statistics_and_answers(server, key, stats, generate):
    """What all tenants do together, and their names, are none of a tenant's business."""
    for path in ("/stats", "/metrics"):
        assert server.http.get(path, headers=bearer(key)).status_code == stats
    answer = server.http.post("/generate", json={"prompt": "a", "max_tokens": 1}, headers=bearer(key))
    assert answer.status_code == generate


def test_every_key_is_compared_whatever_the_first_ones_say(monkeypatch, file):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda ours, theirs: compared.append(ours) or ours == theirs)
    keys = Keys(file)
    assert keys.find(ALICE).name == "alice"
    assert len(compared) == len(EVERYONE)


def test_a_key_can_be_added_and_withdrawn_while_the_server_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("gradus.server.http.keys.REFRESH_S", 0.0)
    path, late = tmp_path / "keys.yaml", new_key()
    write_keys(path, {"alice": EVERYONE["alice"]})
    with running(api_keys=str(path)) as server:
        status = lambda key: server.http.get("/", headers=bearer(key)).status_code  # noqa: E731
        assert (status(ALICE), status(late)) == (200, 401)
        write_keys(path, {"late": Key("late", digest_of(late))})
        assert (status(ALICE), status(late)) == (401, 200)
        path.write_text("keys: [")
        assert (status(ALICE), status(late)) == (401, 200)  # what cannot be read changes nothing
        path.unlink()
        assert (status(ALICE), status(late)) == (401, 200)
        write_keys(path, {})
        assert (status(ALICE), status(late)) == (401, 401)


@pytest.mark.parametrize("text", ["keys: [", "keys: {a: {created: 2026-02-30}}"])
def test_a_file_that_stays_broken_is_reported_once_and_read_again_when_mended(tmp_path, caplog, text):
    path = tmp_path / "keys.yaml"
    write_keys(path, {"alice": EVERYONE["alice"]})
    keys = Keys(path)
    path.write_text(text)
    for _ in range(3):
        keys.refresh()
    assert [line.levelname for line in caplog.records] == ["ERROR"] and keys.find(ALICE)
    write_keys(path, {})
    keys.refresh()
    assert not keys.find(ALICE)


def test_the_environment_holds_one_more_key(monkeypatch, file):
    own = "a-key-of-my-own-choice"
    monkeypatch.setenv(VARIABLE, own)
    with running() as server:
        assert server.http.get("/").status_code == 401
        assert server.http.get("/stats", headers=bearer(own)).status_code == 200
    assert Keys.of(ServerConfig(api_keys=str(file))).find(own).role == "admin"
    for weak in ("short", "with a blank in it", "\u00fcber" * 8):
        monkeypatch.setenv(VARIABLE, weak)
        with pytest.raises(ConfigError, match=f"{VARIABLE} must have at least 16 characters") as caught:
            Keys.of(ServerConfig())
        assert weak not in str(caught.value)


def test_without_keys_loopback_needs_none_and_other_addresses_do_not_start(monkeypatch, file):
    none, some = Keys(), Keys(file)
    assert check_exposure(ServerConfig(), none, loopback=True) is None
    assert check_exposure(ServerConfig(host="0.0.0.0", api_keys=str(file)), some, loopback=False) is None
    with pytest.raises(ConfigError, match="gradus keys add"):
        check_exposure(ServerConfig(host="10.0.0.5"), none, loopback=False)
    assert "without API keys" in check_exposure(ServerConfig(host="10.0.0.5", no_auth=True), none, loopback=False)
    with pytest.raises(ConfigError, match="no_auth contradicts"):
        check_exposure(ServerConfig(no_auth=True), some, loopback=True)


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_file_survives_writing_and_holds_no_key(file, tmp_path):
    assert read_keys(file) == EVERYONE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not any(key in file.read_text() for key in (ALICE, BOB, WATCH, ROOT))
    limited = {"a": Key("a", digest_of(ALICE), limits=KeyLimits(3, 2, 1000), created="2026-11-26")}
    write_keys(tmp_path / "limited.yaml", limited)
    assert read_keys(tmp_path / "limited.yaml") == limited
    assert os.listdir(tmp_path) == ["limited.yaml"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must hold `keys:`"),
        ("- a", "must hold `keys:`"),
        ("keys: [a]", "must hold `keys:`"),
        ("keys: {}\nmore: 1", "must hold `keys:`"),
        ("keys: [", "is not YAML"),
        ("keys: {a: {created: 2026-02-30}}", "is not YAML"),
        ("keys: {A: {}}", "key 'A': names have 1 to 64"),
        ("keys: {a: secret}", "key 'a': must have sha256"),
        ("keys: {a: {sha256: abc}}", "sha256 must be 64 hexadecimal digits"),
        ("keys: {a: {key: abc}}", "must have sha256"),
        (f"keys: {{a: {{sha256: '{'0' * 64}', role: king}}}}", "role must be one of client, monitor, admin"),
        (
            f"keys: {{a: {{sha256: '{'0' * 64}', max_samples: 0}}}}",
            "max_samples must be a whole number, 1 or more, got 0",
        ),
        (f"keys: {{a: {{sha256: '{'0' * 64}', best_priority: 1.5}}}}", "best_priority must be a whole number between"),
        ("keys: !!python/object/apply:os.getpid []", "is not YAML"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_without_its_contents(tmp_path, text, says):
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        Keys(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and says in message and "\n" not in message and "secret" not in message


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_to_is_refused(file, tmp_path, mode):
    path = tmp_path / "keys.yaml"
    path.write_text(file.read_text())
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod go-w"):
        Keys(path)
    path.chmod(0o644)  # hashes of random numbers may be read
    assert Keys(path).find(ALICE).name == "alice"


def test_a_file_that_is_missing_is_said_before_anything_is_loaded(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        Keys(tmp_path / "absent.yaml")


# -- tenants -----------------------------------------------------------------------------------------------------------


def salts(*askers):
    """The cache salt of the same request from each asker: (key's name, own salt)."""
    found = []
    for name, own in askers:
        record = Record("req-1", "POST", salt=salt_of(name) if name else None)
        ask = Ask("a", SamplingParams(), SchedulingParams(cache_salt=own, priority=3))
        (changed,) = admitted(record, [ask])
        assert changed.scheduling.priority == 3 and changed.prompt == "a"
        found.append(changed.scheduling.cache_salt)
    return found


def test_each_key_and_salt_has_prefixes_of_its_own():
    every = [("alice", None), ("alice", "x"), ("bob", None), ("bob", "x"), ("bob", "y"), ("al", "icex"), (None, "x")]
    assert len(set(salts(*every))) == len(every)
    assert salts(("alice", "x")) == salts(("alice", "x"))
    assert salts((None, None), (None, "x")) == [None, "x"]  # without keys, nothing changes


def test_a_salt_says_nothing_about_the_key_or_the_clients_own_salt():
    (salt,) = salts(("alice", "secret"))
    assert len(salt) == 64 and "alice" not in salt and "secret" not in salt


def test_the_salt_reaches_the_engine_whole_and_streamed(server):
    seen = []
    original = server.engine.submit
    server.engine.submit = lambda request: (seen.append(request.scheduling.cache_salt), original(request))
    try:
        for key, stream in ((ALICE, False), (ALICE, True), (BOB, False), (BOB, True)):
            body = {"prompt": "a", "max_tokens": 1, "stream": stream}
            assert server.http.post("/generate", json=body, headers=bearer(key)).status_code == 200
    finally:
        server.engine.submit = original
    assert seen[0] == seen[1] != seen[2] == seen[3] and None not in seen


@pytest.mark.parametrize(
    ("key", "best"),
    [
        (Key("a", b""), 0),
        (Key("a", b"", "admin"), -1000),
        (Key("a", b"", best_priority=-5), -5),
        (Key("a", b"", "admin", best_priority=3), 3),
    ],
)
def test_a_key_asks_for_no_better_priority_than_its_own(key, best):
    record = Record("id", "POST", best_priority=key.first_priority)
    for priority in (best, 1000):
        ask = Ask("a", SamplingParams(), SchedulingParams(priority=priority))
        assert admitted(record, [ask])[0].scheduling.priority == priority
    if best > -1000:
        asks = [Ask("a", SamplingParams()), Ask("a", SamplingParams(), SchedulingParams(priority=best - 1))]
        with pytest.raises(RequestError, match=rf"between {best} and 1000 with this API key \(its best_priority\)"):
            admitted(record, asks[best > 0 :])


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_a_client_cannot_get_ahead_of_the_others(server, path):
    body = {"prompt": "a", "max_tokens": 1, "priority": -1}
    refused = server.http.post(path, json=body, headers=bearer(ALICE))
    assert refused.status_code == 400 and "priority must be between 0 and 1000" in refused.json()["error"]["message"]
    assert server.http.post(path, json=body, headers=bearer(ROOT)).status_code == 200


def test_a_key_never_hits_what_another_has_computed(file):
    """CVE-2025-46570: the time to the first token said whether somebody had sent the same beginning before."""
    prompt = list(range(1, 65))
    with running(lambda: tiny_llm(None), api_keys=str(file)) as server:

        def cached(key):
            body = {"prompt": prompt, "max_tokens": 1}
            return server.http.post("/generate", json=body, headers=bearer(key)).json()["usage"]["cached_tokens"]

        assert cached(ALICE) == 0 and cached(ALICE) > 0
        assert cached(BOB) == 0 and cached(BOB) > 0


# -- nothing of a key is written anywhere ------------------------------------------------------------------------------


def test_no_key_is_ever_logged(file, caplog, capfd, monkeypatch):
    own = "an+own/key.0123456789=="
    monkeypatch.setenv(VARIABLE, own)
    caplog.set_level(logging.DEBUG)
    core = partial(ScriptedCore, faults={3: RuntimeError("broken")})
    wrong = new_key()
    with running(core, api_keys=str(file), log_level="debug", log_requests=True) as server:
        for key in (ALICE, wrong, own):
            for headers in (bearer(key), {"x-api-key": key}, {"authorization": key}, {"x-request-id": key}):
                server.http.get(f"/nowhere?api_key={key}", headers=headers)
                server.http.get(f"/{key}", headers=headers)
                server.http.get(f"/v1/models/é/漢/{key}", headers=headers)
                server.http.post("/generate", json={"prompt": "a", key: 1}, headers=headers)
                server.http.post("/generate", json={"prompt": [99999]}, headers=headers)
        server.http.post("/generate", json={"prompt": "a", "max_tokens": 50}, headers=bearer(ALICE))
        assert eventually(lambda: server.client.state == "failed")
    ours = [line for line in caplog.records if not line.name.startswith("http")]  # without the test's own client
    written = "\n".join(caplog.handler.format(line) for line in ours) + "".join(capfd.readouterr())
    assert "alice" in written  # its name is logged
    for key in (ALICE, wrong, own):
        assert key not in written
