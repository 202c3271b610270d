"""Vulnerabilities of other servers, replayed against this one: each test is named after its cause, with its ids.

Other files already test: hostile bodies, headers and compression (test_hostile.py), keys and the Host header
(test_access.py), rebound names (test_hosts.py), slow clients (test_clients.py), faults of one request and of the engine
(test_faults.py), slots that change owners (tests/engine/test_freed_slots.py, tests/kernels/test_freed_slots.py), line
ends in streams (test_text.py), and code from data (tests/repository/test_imports.py).
"""

import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.server.conftest import events, eventually, running
from tests.server.scripted import ScriptedCore

ROOT = Path(__file__).parents[2]

CORPUS = {
    "CVE-2024-8939, best_of without bound": {"best_of": 1_000_000},
    "CVE-2026-34756, n without bound": {"n": 16_384},
    "CVE-2024-8768, an empty prompt": {"prompt": ""},
    "CVE-2024-8768, an empty list": {"prompt": []},
    "CVE-2026-114051, min_tokens that nobody checks": {"min_tokens": 10**9},
    "CVE-2026-114051, min_tokens beyond max_tokens": {"min_tokens": 6, "max_tokens": 5},
    "CVE-2026-105922, a stop token below the vocabulary": {"stop_token_ids": [-1]},
    "CVE-2026-105922, a stop token beyond the vocabulary": {"stop_token_ids": [2**40]},
    "CVE-2026-105922, a bias below the vocabulary": {"logit_bias": {"-1": 1.0}},
    "CVE-2026-105922, a bias beyond the vocabulary": {"logit_bias": {str(2**40): 1.0}},
    "CVE-2026-105922, a bias beyond all bounds": {"logit_bias": {"5": 1e30}},
    "PYSEC-2026-4350, log-probabilities without bound": {"logprobs": 129},
    "PYSEC-2026-4350, a list of tokens to report": {"logprob_token_ids": list(range(200))},
    "CVE-2026-105756, an empty salt": {"cache_salt": ""},
    "CVE-2026-105756, a salt that is a number": {"cache_salt": 7},
    "CVE-2026-105756, a salt that is a list": {"cache_salt": ["a"]},
    "CVE-2026-105756, a salt that is an object": {"cache_salt": {"a": "b"}},
    "CVE-2026-105756, a salt of a megabyte": {"cache_salt": "x" * 100_000},
    "CVE-2026-111392, a hash as the cache's key": {"block_hashes": ["0" * 64]},
    "CVE-2026-111392, an extra key": {"extra_key": "someone else's"},
    "CVE-2026-112266, a request's id": {"request_id": "gen-1"},
    "CVE-2026-112266, a request's id by SGLang's name": {"rid": ""},
    "CVE-2025-61620, a chat template": {"chat_template": "{{ 1 }}"},
    "CVE-2025-62426, arguments of a template": {"chat_template_kwargs": {"tokenize": True}},
    "PYSEC-2026-4349, a template inside them": {
        "chat_template_kwargs": {"chat_template": "{% for x in y %}{% endfor %}"}
    },
    "CVE-2026-7304, code as a processor": {"custom_logit_processor": "gASVAAAA"},
    "CVE-2026-7304, a processor's name": {"logits_processors": ["os.system"]},
    "CVE-2025-62164, tensors": {"prompt_embeds": "gASVAAAA"},
    "CVE-2026-24779, an address to fetch": {"prompt": {"image_url": "http://127.0.0.1/"}},
    "CVE-2026-5530, a model to pull": {"model": "http://127.0.0.1/x"},
    "PYSEC-2026-4353, instructions for a peer": {"kv_transfer_params": {"remote_host": "127.0.0.1"}},
    "CVE-2026-22773, placeholders of media": {"multi_modal_data": {"image": []}},
    "vllm#53975, a removed field that would be ignored": {"guided_json": {}},
    "CVE-2025-48943, a pattern that does not end": {"structured": {"regex": "("}},
    "huge integers": {"max_tokens": 10**300},
    "huge seeds": {"seed": 2**64},
    "huge token ids": {"prompt": [2**63]},
}


@pytest.fixture(scope="module")
def server():
    with running(partial(ScriptedCore, slots=16)) as server:
        yield server


@pytest.mark.parametrize("case", CORPUS)
def test_a_field_that_harmed_other_servers_is_refused_by_its_name(server, case):
    steps = server.stats()["steps"]
    answer = server.http.post("/generate", json={"prompt": "a", "max_tokens": 5} | CORPUS[case])
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] in CORPUS[case]
    assert server.stats()["steps"] == steps and server.health() == 200


def test_validation_does_not_rest_on_assert():
    """CVE-2026-41523: with `python -O`, guards that were assertions were gone."""
    code = (
        "import json, sys\n"
        "from gradus.engine.request import ModelLimits, Request\n"
        "from gradus.errors import RequestError\n"
        "from gradus.server.api.generate import Generate\n"
        "from gradus.server.config import ServerConfig\n"
        "assert False, 'not reached under -O'\n"
        "for case, fields in json.load(sys.stdin).items():\n"
        "    body = {'prompt': [1], 'max_tokens': 5} | fields\n"
        "    try:\n"
        "        ask = Generate.parse(body, ServerConfig()).ask\n"
        "        prompt = ask.prompt if isinstance(ask.prompt, list) else list(ask.prompt.encode())\n"
        "        Request.create('r', prompt, ask.params, ModelLimits(1000, 4096), ask.scheduling)\n"
        "    except RequestError:\n"
        "        continue\n"
        "    sys.exit(case)\n"
    )
    done = subprocess.run(
        [sys.executable, "-O", "-c", code], input=json.dumps(CORPUS), capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("salt", ["\u0000", "a b", "../..", "\u2028", "\U0001f600" * 100, "x" * 1024])
def test_an_odd_salt_that_is_a_text_is_a_salt(server, salt):
    """CVE-2026-105756: one part accepted what another raised an exception for."""
    answer = server.generate(prompt="a", max_tokens=2, cache_salt=salt)
    assert answer.status_code == 200 and answer.json()["token_ids"] == [0, 1]


def in_background(*calls):
    results = [None] * len(calls)

    def run(index):
        results[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    return lambda: [thread.join(20) for thread in threads] and results


def test_a_departure_cancels_one_request_and_none_whose_id_begins_alike(serving, numbered):
    """CVE-2026-112266: abort matched ids by prefix, so one short id ended everybody's requests."""
    server = serving(partial(ScriptedCore, slots=32, step_s=0.01))
    first = server.send(b'{"prompt": "a", "max_tokens": 4000}')
    assert eventually(lambda: server.engine.running)
    others = in_background(*[lambda: server.generate(prompt="a", max_tokens=40)] * 20)
    assert eventually(lambda: len(server.engine.running) == 21)
    names = {sample.request.id for sample in server.engine.running}
    assert {"gen-1", "gen-10", "gen-19"} <= names
    server.leave(first, reset=True)
    assert [answer.json()["usage"]["completion_tokens"] for answer in others()] == [40] * 20
    assert {name for name, _, _ in server.engine.cancelled} == {"gen-1"}


def test_equal_ids_from_clients_mix_up_nothing(serving):
    """PYSEC-2026-4198: X-Request-Id became a key inside, so two clients could share one entry."""
    server = serving(partial(ScriptedCore, slots=8, step_s=0.005))
    headers = {"x-request-id": "same", "x-correlation-id": "same"}

    def ask(tokens):
        return server.http.post("/generate", json={"prompt": "a", "max_tokens": tokens}, headers=headers)

    answers = in_background(*(partial(ask, tokens) for tokens in range(20, 28)))()
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == list(range(20, 28))
    assert len({answer.json()["id"] for answer in answers}) == 8
    assert len({answer.headers["x-request-id"] for answer in answers}) == 8


def test_a_requests_samples_enter_together_or_not_at_all(serving):
    """CVE-2026-34756: the fan-out of n took place piece by piece, beyond what the queue could hold."""
    server = serving(partial(ScriptedCore, slots=1, step_s=0.02), max_waiting=10)
    connection = server.send(b'{"prompt": "a", "max_tokens": 4000, "n": 8}')
    assert eventually(lambda: server.stats()["waiting"] == 7)
    assert server.generate(prompt="a", max_tokens=1, n=4).status_code == 503
    assert server.stats()["waiting"] == 7
    connection.close()


OURS = ("/generate", "/v1/", "/tokenize", "/detokenize", "/ping")


def test_no_route_changes_the_server(server):
    """CVE-2026-111391, LMDeploy's /terminate, vLLM's /pause: routes that change the server were open to its clients."""
    changing = {
        route.path
        for route in server.server.config.app.routes
        for method in route.methods
        if method not in ("GET", "HEAD", "OPTIONS")
    }
    assert changing and all(path.startswith(OURS) for path in changing)
    for path in ("/terminate", "/pause", "/update_weights", "/abort_request", "/debug", "/invocations", "/shutdown"):
        assert server.http.post(path, json={}).status_code == 404


def test_every_protocol_submits_through_the_one_gate():
    """vLLM documents routes that its API key does not reach. Here limits and salts are applied where requests enter."""
    callers = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "gradus" / "server").rglob("*.py")
        if "client.submit(" in path.read_text(encoding="utf-8")
    }
    assert callers == {"gradus/server/http/app.py"}
    text = (ROOT / "src" / "gradus" / "server" / "http" / "app.py").read_text(encoding="utf-8")
    assert text.count("client.submit(") == text.count("client.submit(*admitted(record, ") == 1


@pytest.mark.parametrize("path", ["/metrics", "/stats", "/version", "/ping", "/health/ready"])
@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "HEAD"])
def test_a_rebound_page_reads_no_statistics_with_any_method(server, path, method):
    """CVE-2025-62593 and CVE-2026-27482: a rebound name passed the check for browsers, and DELETE was forgotten."""
    for headers in (
        {"host": f"evil.org:{server.port}"},
        {"origin": "https://evil.org"},
        {"sec-fetch-site": "cross-site"},
    ):
        answer = server.http.request(method, path, headers=headers)
        assert answer.status_code == 403 and "gradus_" not in answer.text


def test_an_error_shows_no_address_and_no_trace(serving):
    """CVE-2026-22778: an error's text held a heap address, which made the next bug an exploit."""

    class Leaking(ScriptedCore):
        def submit(self, request):
            raise ValueError(f"bad {object()}")

    for stream in (False, True):
        answer = serving(Leaking).generate(prompt="a", max_tokens=1, stream=stream)
        text = json.dumps(events(answer)[0]) if stream and answer.status_code == 200 else answer.text
        assert "0x" not in text and "Traceback" not in text and "internal_error" in text
