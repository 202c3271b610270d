"""The routes that describe the model and its tokens, and those that probes call."""

import time
from datetime import UTC, datetime

import pytest

import gradus
from gradus.loading import model_name
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
    (model,) = found.pop("data")
    name = server.client.model
    assert found == {"object": "list", "has_more": False, "first_id": name, "last_id": name}
    created, at = model.pop("created"), datetime.fromisoformat(model.pop("created_at"))
    assert 0 <= time.time() - created < 600 and at == datetime.fromtimestamp(created, UTC)
    assert model == {
        "id": name,
        "object": "model",
        "state": "ready",
        "owned_by": "gradus",
        "root": name,
        "parent": None,
        "max_model_len": server.client.info.limits.context_length,
        "chat": True,
        "default_sampling": {"temperature": 1.0},
        "sampling_sources": {"temperature": "the protocol"},
        "type": "model",
        "display_name": name,
    }
    assert name == "random:tiny-llama"
    assert server.http.get(f"/v1/models/{name}").json()["id"] == name


def test_another_model_is_not_found_in_openai_s_shape(server):
    answer = server.http.get("/v1/models/org/other")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("not_found_error", "model_not_found", "model")
    assert "'org/other'" in error["message"] and "random:tiny-llama" in error["message"]


# -- names -------------------------------------------------------------------------------------------------------------

CHAT = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 1}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "ab", "max_output_tokens": 1},
    "/v1/messages": CHAT,
    "/v1/completions": {"prompt": "ab", "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
    "/tokenize": {"prompt": "ab"},
    "/detokenize": {"tokens": [97]},
}
"""A body for each route that reads `model`."""


@pytest.fixture(scope="module")
def named():
    with running(lambda: tiny_llm("p01"), served_model_name=("house", "gpt-x", "house", "a/b"), temperature=0.5) as one:
        yield one


@pytest.mark.parametrize("path", BODIES)
def test_a_request_names_the_model_or_nothing(named, server, path):
    for name in ("house", "gpt-x", "a/b", None):
        answer = named.http.post(path, json=BODIES[path] | {"model": name})
        assert answer.status_code == 200, answer.text
        assert answer.json().get("model", "house") == "house"
    for name in ("random:tiny-llama", "House", ["house"], 3, ""):
        answer = named.http.post(path, json=BODIES[path] | {"model": name})
        assert answer.status_code == 404 and "must be one of house, gpt-x, a/b, got " in answer.text
    assert server.http.post(path, json=BODIES[path] | {"model": "any"}).status_code == 200  # no name was given


def test_any_name_is_taken_where_the_names_say_so():
    with running(lambda: tiny_llm("p01"), served_model_name=("house", "*")) as one:
        assert one.http.post("/v1/messages", json=CHAT | {"model": "claude-opus"}).json()["model"] == "house"
        assert [each["id"] for each in one.http.get("/v1/models").json()["data"]] == ["house"]
        assert one.http.get("/v1/models/claude-opus").status_code == 404


def test_every_name_has_an_entry_and_all_say_what_model_it_is(named):
    found = named.http.get("/v1/models").json()["data"]
    assert [(each["id"], each["display_name"], each["root"]) for each in found] == [
        (name, name, "random:tiny-llama") for name in ("house", "gpt-x", "a/b")
    ]
    assert named.http.get("/v1/models/a/b").json() == found[2]
    assert found[0]["default_sampling"] == {"temperature": 0.5}
    assert found[0]["sampling_sources"] == {"temperature": "the server's settings"}
    assert 'model="house"' in named.http.get("/metrics").text
    assert named.stats()["model"] == "random:tiny-llama"


@pytest.mark.parametrize(
    ("query", "names", "more"),
    [
        ("limit=1", ["house"], True),
        ("limit=2&after_id=house", ["gpt-x", "a/b"], False),
        ("limit=1&after_id=house", ["gpt-x"], True),
        ("limit=1&before_id=a/b", ["gpt-x"], True),
        ("before_id=house", [], False),
        ("limit=1000&beta=true", ["house", "gpt-x", "a/b"], False),
    ],
)
def test_a_list_is_cut_as_anthropic_cuts_it(named, query, names, more):
    found = named.http.get(f"/v1/models?{query}").json()
    assert ([each["id"] for each in found["data"]], found["has_more"]) == (names, more)
    assert (found["first_id"], found["last_id"]) == ((names[0], names[-1]) if names else (None, None))


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=-1", "limit=x", "limit=", "after_id=x", "before_id="]
)
def test_a_list_that_cannot_be_cut_so_is_refused(named, query):
    answer = named.http.get(f"/v1/models?{query}")
    field = query.split("=")[0]
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_a_file_is_named_without_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen.Q4_K_M.gguf").touch()
    (tmp_path / "org" / "tiny-1.5").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "org" / "tiny-1.5")
    for path in ("qwen.Q4_K_M.gguf", "./qwen.Q4_K_M.gguf", f"{tmp_path}/org/../qwen.Q4_K_M.gguf"):
        assert model_name(path) == "qwen.Q4_K_M"
    assert [model_name(path) for path in ("org/tiny-1.5", "org/tiny-1.5/", f"{tmp_path}/link")] == [
        "tiny-1.5", "tiny-1.5", "link",
    ]  # fmt: skip
    assert model_name(".") == tmp_path.name
    for name in ("smollm2-135m", "random:tiny-llama", "Qwen/Qwen2.5-0.5B", "~nobody-here/x", "x" * 5000, "/"):
        assert model_name(name) == name


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
    watched = server.http.head("/xray")  # its body has no end
    assert (watched.status_code, watched.content) == (200, b"")
    assert watched.headers["content-type"].startswith("text/event-stream")
    for path in set(readable) - {"/xray"}:
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
