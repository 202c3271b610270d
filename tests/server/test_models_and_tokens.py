"""The routes that describe the model and its tokens, and those that probes call."""

import time

import pytest

import gradus
from tests.server.conftest import running, tiny_llm
from tests.server.scripted import ScriptedCore


@pytest.fixture(scope="module")
def server():
    """A real tokenizer: one token per byte."""
    with running(lambda: tiny_llm("p01"), tokenizer_info=True) as one:
        yield one


def posted(server, path, **body):
    answer = server.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(server, path, **body):
    answer = server.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def test_the_model_is_listed_with_its_context(server):
    found = server.http.get("/v1/models").json()
    assert found["object"] == "list"
    (model,) = found["data"]
    name = server.client.model
    assert 0 <= time.time() - model.pop("created") < 600
    assert model == {
        "id": name,
        "object": "model",
        "owned_by": "gradus",
        "root": name,
        "parent": None,
        "max_model_len": server.client.info.limits.context_length,
    }
    assert name == "random:tiny-llama"
    assert server.http.get(f"/v1/models/{name}").json()["id"] == name


def test_another_model_is_not_found_in_openai_s_shape(server):
    answer = server.http.get("/v1/models/org/other")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("not_found_error", "model_not_found", "model")
    assert "'org/other'" in error["message"] and "random:tiny-llama" in error["message"]


def test_text_becomes_tokens_and_back(server):
    found = posted(server, "/tokenize", model="any", prompt="né!", add_special_tokens=True)
    assert found == {
        "count": 4,
        "max_model_len": server.client.info.limits.context_length,
        "tokens": list("né!".encode()),
        "token_strs": None,
    }
    assert posted(server, "/detokenize", model="any", tokens=found["tokens"]) == {"prompt": "né!"}
    strings = posted(server, "/tokenize", prompt="né!", return_token_strs=True)["token_strs"]
    assert strings == ["n", "bytes:\\xc3", "bytes:\\xa9", "!"]
    assert posted(server, "/tokenize", prompt="")["count"] == 0


def test_a_conversation_becomes_the_tokens_that_a_chat_would_have(server):
    messages = [{"role": "user", "content": "Hi"}]
    found = posted(server, "/tokenize", messages=messages)
    assert found["tokens"] == server.client.front_end.chat_prompt(messages)
    assert posted(server, "/detokenize", tokens=found["tokens"])["prompt"] == "user: Hi\nassistant:"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": [1]}, "prompt"),
        ("/tokenize", {"messages": "hi"}, "messages"),
        ("/tokenize", {"messages": [], "chat_template": "{{ 1 }}"}, "chat_template"),
        ("/tokenize", {"messages": [], "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ("/tokenize", {"messages": [], "add_special_tokens": True}, "add_special_tokens"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": None}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": "ab"}, "tokens"),
    ],
)
def test_what_is_no_text_and_no_token_is_refused(server, path, body, param):
    assert refused(server, path, **body)["param"] == param


def test_the_tokenizer_is_described_only_where_that_is_allowed(server):
    found = server.http.get("/tokenizer_info").json()
    assert found["tokenizer_class"] == "gradus" and "messages" in found["chat_template"]
    assert {"eos_token", "bos_token"} <= found.keys()
    with running(ScriptedCore) as other:
        refused = other.http.get("/tokenizer_info")
        assert refused.status_code == 404
        assert "serve with --tokenizer-info" in refused.json()["error"]["message"]


def test_head_works_wherever_get_does(server):
    routes = server.http.get("/").json()["routes"]
    readable = [path for path, methods in routes.items() if "GET" in methods.split() and "{" not in path]
    assert {"/", "/health", "/v1/models", "/metrics", "/openapi.json"} <= set(readable)
    for path in readable:
        answer, whole = server.http.head(path), server.http.get(path)
        assert (answer.status_code, answer.content) == (whole.status_code, b"") and whole.content
        assert answer.headers["content-type"] == whole.headers["content-type"]


def test_probes_answer_as_health_does(server):
    assert server.http.get("/version").json() == {"version": gradus.__version__}
    for answer in (server.http.get("/ping"), server.http.post("/ping"), server.http.get("/health")):
        assert answer.status_code == 200 and answer.json()["status"] == "ready"
    with running(lambda: ScriptedCore(hang={1: 3}), step_timeout=0.3) as hung:
        assert hung.http.post("/v1/completions", json={"prompt": "a"}).status_code == 503
        assert hung.http.get("/ping").status_code == hung.http.post("/ping").status_code == 503


def test_the_index_lists_every_route(server):
    routes = server.http.get("/").json()["routes"]
    for path in ("/generate", "/v1/completions", "/tokenize", "/detokenize"):
        assert routes[path] == "POST"
    for path in ("/v1/models", "/health", "/version", "/stats", "/openapi.json"):
        assert routes[path] == "GET"
