"""/generate with the real engine: the same answer whole or streamed, alone or in company, over HTTP or in Python."""

import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from gradus.engine.request import SamplingParams
from gradus.text.transcript import Transcript
from tests.server.conftest import events, eventually, tiny_llm

SAMPLED = {"temperature": 1.0, "seed": 7}


@pytest.fixture(scope="module")
def offline():
    return tiny_llm()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(real):
    yield
    assert eventually(real.idle)
    real.engine.check()


def ok(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(real, **body):
    """The frames of a streamed answer that ended well."""
    answer = real.generate(stream=True, **body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    frames, done = events(answer)
    assert done
    return frames


@pytest.mark.parametrize("fields", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_the_server_says_what_the_engine_says(real, offline, fields):
    (expected,) = offline.generate("Once upon a time", SamplingParams(max_tokens=20, **fields))
    answer = ok(real.generate(prompt="Once upon a time", max_tokens=20, **fields))
    assert answer["token_ids"] == list(expected.token_ids)
    assert answer["text"] == expected.text
    assert answer["finish_reason"] == expected.finish_reason


def without_cost(usage):
    return {name: count for name, count in usage.items() if name != "device_seconds"}


def test_an_answer_has_all_that_is_documented(real):
    answer = ok(real.generate(prompt=[1, 2, 3], max_tokens=5, ignore_eos=True))
    assert set(answer) == {
        "id",
        "model",
        "index",
        "text",
        "token_ids",
        "finish_reason",
        "stop_reason",
        "timings",
        "usage",
    }
    assert answer["model"] == "random:tiny-llama"
    assert answer["finish_reason"] == "length" and answer["stop_reason"] is None
    assert 0 < answer["usage"].pop("device_seconds") < 60
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "cached_tokens": 0}
    timings = answer["timings"]
    assert 0 <= timings["queued_s"] <= timings["ttft_s"] <= timings["total_s"]
    assert timings["decode_tokens_per_s"] > 0


@pytest.mark.parametrize(
    "fields",
    [{}, SAMPLED, {"n": 3, **SAMPLED}, {"logprobs": 2}, {"stop": ["e", "\x00"], **SAMPLED}],
    ids=["greedy", "sampled", "three", "logprobs", "stop"],
)
def test_the_pieces_of_a_stream_are_the_whole(real, fields):
    body = {"prompt": "A stream", "max_tokens": 20, **fields}
    whole = ok(real.generate(**body))
    frames = streamed(real, **body)
    choices = whole.get("choices", [whole])
    assert len({frame["id"] for frame in frames}) == 1
    for choice in choices:
        mine = [frame for frame in frames if frame["index"] == choice["index"]]
        assert "".join(frame["text"] for frame in mine) == choice["text"]
        assert [token for frame in mine for token in frame["token_ids"]] == choice["token_ids"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        assert mine[-1]["stop_reason"] == choice["stop_reason"]
        assert "finish_reason" not in frame_keys(mine[:-1])
        if "logprobs" in fields:
            assert [entry for frame in mine for entry in frame["logprobs"]] == choice["logprobs"]
    assert without_cost(frames[-1]["usage"]) == without_cost(whole["usage"])
    assert frames[-1]["model"] == whole["model"]
    assert "usage" not in frame_keys(frames[:-1])


def frame_keys(frames):
    return {key for frame in frames for key in frame}


def test_characters_are_whole_in_every_piece(real):
    """Only the two bytes of 'é' may come, in any order: a piece never holds half a character as if it were one."""
    bias = {str(token): -100 for token in range(256)} | {"195": 50, "169": 50}
    body = {"prompt": "x", "max_tokens": 30, "temperature": 1.0, "seed": 3, "logit_bias": bias, "ignore_eos": True}
    answer = ok(real.generate(**body))
    whole = bytes(answer["token_ids"]).decode(errors="replace")
    assert "é" in whole
    assert answer["text"] == whole
    assert "".join(frame["text"] for frame in streamed(real, **body)) == whole


def test_several_samples_come_as_choices_the_first_also_on_top(real):
    answer = ok(real.generate(prompt="Choose", max_tokens=6, n=3, ignore_eos=True, **SAMPLED))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["token_ids"] == answer["choices"][0]["token_ids"]
    assert len({tuple(choice["token_ids"]) for choice in answer["choices"]}) > 1
    assert answer["usage"]["completion_tokens"] == 18
    assert answer["usage"]["prompt_tokens"] == len("Choose")


def test_logprobs_come_when_asked_for(real):
    answer = ok(real.generate(prompt="Odds", max_tokens=4, logprobs=3, ignore_eos=True))
    assert [entry["token_id"] for entry in answer["logprobs"]] == answer["token_ids"]
    for entry in answer["logprobs"]:
        assert len(entry["top"]) == 3
        assert entry["top"][0] == {"token_id": entry["token_id"], "logprob": entry["logprob"]}  # greedy takes the best
        assert entry["logprob"] <= 0


def test_a_stop_string_ends_the_text_before_itself_however_tokens_cut_it(real):
    body = {"prompt": "Stop", "max_tokens": 30, "ignore_eos": True, **SAMPLED}
    text = ok(real.generate(**body))["text"]
    middle = len(text) // 2
    stop = text[middle : middle + 3]
    answer = ok(real.generate(**body, stop=[stop]))
    assert answer["text"] == text[: text.index(stop)]
    assert answer["finish_reason"] == "stop" and answer["stop_reason"] == stop
    pieces = [frame["text"] for frame in streamed(real, **body, stop=[stop])]
    assert "".join(pieces) == answer["text"]
    # the beginnings of a stop string that then does not come are not lost
    assert ok(real.generate(**body, stop=[stop + "\x00never"]))["text"] == text


def test_a_stop_string_in_the_prompt_stops_nothing(real):
    body = {"prompt": "Stop here", "max_tokens": 5, "ignore_eos": True}
    assert ok(real.generate(**body, stop=["Stop"]))["finish_reason"] == "length"


def test_sampling_does_not_depend_on_neighbors(real):
    bodies = [
        {"prompt": f"seed {i}", "max_tokens": 10, "temperature": 1.0, "seed": i, "n": 1 + i % 3} for i in range(5)
    ]
    alone = [ok(real.generate(**body)) for body in bodies]
    with ThreadPoolExecutor(5) as pool:
        together = list(pool.map(lambda body: ok(real.generate(**body)), bodies))
    for one, other in zip(alone, together, strict=True):
        assert tokens(one) == tokens(other)


def tokens(answer):
    return [choice["token_ids"] for choice in answer.get("choices", [answer])]


@pytest.mark.parametrize("place", ["text", "sampler"])
def test_a_fault_in_one_request_leaves_the_others_token_identical(real, monkeypatch, place):
    bodies = [{"prompt": [40 + i] * 5, "max_tokens": 10, "ignore_eos": True} for i in range(4)]
    alone = [ok(real.generate(**body))["token_ids"] for body in bodies]
    if place == "text":
        add = Transcript.add

        def faulty(self, output):
            if self.request.prompt[0] == 42 and len(self._tokens) == 3:
                raise ZeroDivisionError("injected")
            return add(self, output)

        monkeypatch.setattr(Transcript, "add", faulty)
        monkeypatch.setattr(Transcript, "plain", lambda self, token: None)  # so that every token is added there
    else:
        commit = type(real.engine.engine.scheduler).commit

        def faulty(self, plan, result):
            sampled = result.get()
            for row, span in enumerate(span for span in plan.expanded() if span.logits):
                if span.sequence.request.prompt[0] == 42 and span.sequence.generated == 3:
                    sampled.tokens[row] = -1
            return commit(self, plan, SimpleNamespace(rows=result.rows, get=lambda: sampled))

        monkeypatch.setattr(type(real.engine.engine.scheduler), "commit", faulty)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda body: real.generate(**body), bodies))
    assert [answer.status_code for answer in answers] == [200, 200, 500, 200]
    assert "injected" not in answers[2].text
    for index in (0, 1, 3):
        assert answers[index].json()["token_ids"] == alone[index]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_real_engine_too(real, stream):
    before = real.stats()["cancelled"]
    body = {
        "prompt": "x",
        "max_tokens": real.stats()["context_length"] - 1,
        "ignore_eos": True,
        "stream": stream,
        "n": 64,  # seconds of work, even for a tiny model
    }
    for reset in (False, True):
        connection = real.send(json.dumps(body).encode())
        assert eventually(lambda: real.stats()["active"] >= 1)
        real.leave(connection, reset)
        assert eventually(real.idle)
    assert real.stats()["cancelled"] > before


def test_a_prompt_at_the_limits_of_the_real_engine(real):
    context = real.stats()["context_length"]
    assert ok(real.generate(prompt=[1] * (context - 1), max_tokens=1))["usage"]["prompt_tokens"] == context - 1
    error = real.generate(prompt=[1] * context, max_tokens=1).json()["error"]
    assert error["param"] == "prompt" and error["limit"] == f"at most {context - 1} tokens" and error["got"] == context
    vocabulary = real.stats()["vocab_size"]
    assert ok(real.generate(prompt=[vocabulary - 1], max_tokens=1))
    assert real.generate(prompt=[vocabulary], max_tokens=1).json()["error"]["got"] == str(vocabulary)


def test_the_totals_add_up(real):
    before = real.stats()
    ok(real.generate(prompt=[1, 2, 3], max_tokens=5, n=2, ignore_eos=True))
    real.generate(prompt=[-1])
    after = real.stats()
    grown = {name: after[name] - before[name] for name in ("completed", "failed", "cancelled", "generated_tokens")}
    assert grown == {"completed": 2, "failed": 0, "cancelled": 0, "generated_tokens": 10}
    assert after["prompt_tokens"] - before["prompt_tokens"] == 3
    assert after["steps"] > before["steps"]
    assert after["waiting"] == after["active"] == 0
    assert after["phase"] == real.engine.phase and after["dtype"] == "float32" and after["device"] == "cpu"
    assert 1 <= after["average_batch"] <= after["max_batch"]


def test_the_index_lists_the_routes_and_they_exist(real):
    index = real.http.get("/").json()
    asked = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    bodies = {
        "/v1/chat/completions": asked,
        "/v1/messages": asked,
        "/v1/messages/count_tokens": asked,
        "/v1/responses": {"input": "a", "max_output_tokens": 1},
        "/detokenize": {"tokens": [97]},
    }
    for path, method in index["routes"].items():
        body = bodies.get(path, {"prompt": "a", "max_tokens": 1})
        path = path.replace("{name:path}", real.client.model)
        with real.http.stream(method, path, json=body) as answer:  # GET /xray has no end
            assert answer.status_code == 200, path


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "size": {"enum": [1, 2]}},
    "required": ["ok", "size"],
    "additionalProperties": False,
}


FINAL = pytest.mark.parametrize("real", [None], ids=["final"], indirect=True)


@FINAL
def test_an_answer_keeps_to_its_schema_whole_and_streamed(real):
    body = {"prompt": "As JSON:", "structured": {"json_schema": SCHEMA}, "max_tokens": 200, **SAMPLED}
    answer = ok(real.generate(**body))
    assert answer["finish_reason"] == "stop" and set(json.loads(answer["text"])) == {"ok", "size"}
    assert "".join(frame["text"] for frame in streamed(real, **body)) == answer["text"]


@FINAL
@pytest.mark.parametrize(
    ("structured", "says"),
    [
        ({"regex": "a("}, "unclosed group"),
        ({"json_schema": {"not": {"type": "string"}}}, "structured"),
        ({"json": True, "regex": "a"}, "exactly one of"),
        ({"guided_json": SCHEMA}, "structured must be an object of"),
        ({"json_schema": SCHEMA, "whitespace": "much"}, "whitespace must be"),
    ],
)
def test_a_constraint_that_cannot_be_kept_is_a_400_in_one_line(real, structured, says):
    answer = real.generate(prompt="x", structured=structured)
    assert answer.status_code == 400 and says in answer.text and "\\n" not in answer.json()["error"]["message"]
