"""What HTTP costs is measured on the same requests, by clients that read every token."""

import argparse
import asyncio
import json

import pytest

from benchmarks import http_cost
from benchmarks.http_cost import Load, Row, Sample, answer, request, through_python
from gradus.bench.measure.drive import ContenderFailed

LOAD = Load(streams=3, rounds=2, prompt=5, output=4)


def test_no_two_prompts_are_alike_and_neither_are_those_of_two_repeats():
    prompts = LOAD.prompts(1000, seed=0)
    assert [len(rounds) for rounds in prompts] == [2, 2, 2]
    everybody = [tuple(prompt) for seed in (0, 1) for rounds in LOAD.prompts(1000, seed) for prompt in rounds]
    assert len(set(everybody)) == 12 and {len(prompt) for prompt in everybody} == {5}


# -- a client ----------------------------------------------------------------------------------------------------------


def read(wire: bytes) -> list[float]:
    async def feed() -> list[float]:
        reader = asyncio.StreamReader()
        reader.feed_data(wire)
        reader.feed_eof()
        return await answer(reader)

    return asyncio.run(feed())


def chunked(*pieces: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def event(**content) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def test_every_token_counts_however_the_events_are_cut():
    wire = event(token_ids=[1]) + b": ping\n\n" + event(token_ids=[2, 3]) + event(token_ids=[4]) + b"data: [DONE]\n\n"
    for cut in range(1, len(wire)):
        assert len(read(chunked(wire[:cut], wire[cut:]))) == 4


def test_tokens_that_come_together_have_one_time_and_others_go_on():
    times = read(chunked(event(token_ids=[1, 2]), event(token_ids=[3])))
    assert times[0] == times[1] < times[2]


def test_a_refusal_and_an_error_in_the_stream_are_errors():
    with pytest.raises(RuntimeError, match=r"503.*full"):
        read(b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"error": "the queue is full"}')
    with pytest.raises(RuntimeError, match="timeout"):
        read(chunked(event(token_ids=[1]), event(token_ids=[], error={"message": "timeout"})))


def test_a_request_says_how_long_it_is():
    head, _, body = request([1, 2], 7).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body) == {"prompt": [1, 2], "max_tokens": 7, "ignore_eos": True, "stream": True}


# -- Python's side, and the sums ---------------------------------------------------------------------------------------


def test_through_python_a_stream_asks_again_when_its_answer_is_complete():
    from gradus.text.llm import LLM

    llm = LLM("random:tiny-llama", device="cpu", dtype="float32", max_sequences=4, context_length=16)
    found = through_python(llm, LOAD, LOAD.prompts(llm.config.vocab_size, seed=1))
    assert len(found.asked) == 6 and all(len(times) == 4 for _, times in found.asked)
    assert min(sent for sent, _ in found.asked[3:]) >= min(times[-1] for _, times in found.asked[:3])
    summary = found.summary(LOAD)
    assert (summary["completed"], summary["output_tokens"], summary["prompt_tokens"]) == (6, 24, 30)


def test_the_sums_are_those_of_the_times():
    found = Sample([(10.0, [10.5, 10.6, 10.8]), (10.25, [10.75, 10.85, 12.0])], client_percent=12.34)
    summary = found.summary(Load(2, 1, 5, 3))
    assert (summary["seconds"], summary["output_tokens"], summary["client_percent"]) == (2.0, 6, 12.3)
    assert summary["ttft_ms"]["p50"] == 500 and summary["itl_ms"]["p100"] == 1150
    with pytest.raises(ContenderFailed, match="3 tokens instead of 4"):
        found.summary(Load(2, 1, 5, 4))


def test_the_table_has_both_sides_and_what_is_left_over_http():
    row = Row(Load(2, 1, 5, 3))
    for side, last in (("python", 11.0), ("http", 12.0)):
        row.samples[side] = [Sample([(10.0, [10.5, 10.6, last])] * 2, 1.0, 50.0).summary(row.load)]
    header, python, http = http_cost.table([row])
    assert "kept" in header and "python" in python and "%" not in python.replace("1 %", "").replace("50 %", "")
    assert "50 %" in http and http.split()[2] == "3" and python.split()[2] == "6"


@pytest.mark.slow
def test_both_sides_are_measured_on_a_real_server(process):
    options = argparse.Namespace(
        model="random:tiny-llama", phase=None, device="cpu", dtype="float32", streams=[1, 3], repeats=1, quick=True,
        commit="none",
    )  # fmt: skip
    found = http_cost.measure(options)
    assert [row["load"]["streams"] for row in found["rows"]] == [1, 3]
    for row in found["rows"]:
        (python,), (http,) = row["samples"]["python"], row["samples"]["http"]
        assert python["output_tokens"] == http["output_tokens"] == row["load"]["rounds"] * row["load"]["streams"] * 8
        assert http["client_percent"] > 0 and http["server_percent"] >= 0 and "client_percent" not in python
    assert len(found["table"]) == 5
    json.dumps(found)
