"""Mistakes in what the benchmarks are asked for: one line says each, exit code 2, and nothing is written."""

import pytest

from gradus.bench.studies import beside
from tests.bench.conftest import TINY
from tests.cli.conftest import gradus  # noqa: F401  # the command line, as a fixture

LOADED = ["--text", "{book}", "--model", "random:tiny-llama", "--device", "cpu"]
SAMPLING = ["bench", "sampling", *TINY]
SCHEDULER = ["bench", "scheduler"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["bench", "p99"], "benchmark must be one of p00, p01, p02, p03, p04, p05, p06, "),
        (["bench", "p01", "--repeats", "0", *TINY], "repeats must be 1 or more, got 0"),
        (["bench", "p01", "--model", "random:nothing"], "no shape named 'nothing'"),
        (["bench", "p01", "--table", "nothing", *TINY], "p01 has no"),
        (["bench", "p01", "--contender", "p77", *TINY], "p01 has no"),
        (["bench", "p06", "--quantize", "int5", *TINY], "quantize must be int8, fp8, "),
        (["bench", "p06", "--quantize", "int8", "--contender", "transformers", *TINY], "run no matrices that are"),
        (["bench", beside.NAME, *TINY[:2]], "is measured by benchmarks/beside_vllm.py"),
        (["report", "nowhere"], "nowhere: no such folder"),
        (["profile", "p99", *TINY], "phase must be one of p00"),
        (["profile", "p01", "--context", "0", *TINY], "context must be between 1 and"),
        (["profile", "p01", "--batch", "0", *TINY], "batch must be 1 or more, got 0"),
        ([*SAMPLING, "--table", "greedy"], "measures one engine, all of it"),
        ([*SAMPLING, "--contender", "top-k 50"], "measures one engine, all of it"),
        ([*SAMPLING, "--resume"], "measures one engine, all of it"),
        ([*SAMPLING, "--no-peers"], "measures one engine, all of it"),
        ([*SAMPLING, "--repeats", "0"], "repeats must be 1 or more, got 0"),
        ([*SAMPLING, "--requests", "5"], "are for `gradus bench scheduler`, not for sampling"),
        ([*SCHEDULER, "--policy", "fifo"], "policy must be one of fcfs, priority, deadline, got 'fifo'"),
        ([*SCHEDULER, "--requests", "0"], "requests must be 1 or more, got 0"),
        ([*SCHEDULER, "--batch", "0"], "batch must be 1 or more, got 0"),
        ([*SCHEDULER, "--device", "cpu"], "it takes --requests, --batch, --policy"),
        ([*SCHEDULER, "--quantize", "int8"], "loads no model"),
        (["bench", "p01", "--requests", "5"], "are for `gradus bench scheduler`, not for p01"),
        (["bench", "quality", "--quantize", "int8", "--model", TINY[1]], "it takes --model, --device"),
        (["bench", "quality", "--text", "no/such/file", *TINY[:4]], "no/such/file: cannot be read: No such file"),
        (["bench", "quality", "--text", ".", *TINY[:4]], "cannot be read: Is a directory"),
        (["bench", "quality", "--text", "{binary}", *TINY[:4]], "not UTF-8 text: byte 3 is 0xff"),
        (["bench", "quality", "--text", "{short}", *TINY[:4]], "short.txt: no document has more than 64 tokens"),
        (["bench", "quality", "--contender", "int3", *LOADED], "contender must be one of bfloat16, int8, fp8, "),
        (["bench", "quality", "--dtype", "float32", *LOADED], "runs each model once, in number types of its own"),
        (["bench", "quality", "--table", "text", *LOADED], "runs each model once"),
        (["bench", "quality", "--resume", *LOADED], "runs each model once"),
        (["bench", "quality", "--repeats", "2", *LOADED], "runs each model once"),
        (["bench", "p01", "--text", "{book}"], "--text is for `gradus bench quality`, not for p01"),
        (["bench", "sampling", "--text", "{book}"], "--text is for `gradus bench quality`, not for sampling"),
        ([*SCHEDULER, "--text", "{book}"], "it takes --requests, --batch, --policy"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(gradus, tmp_path, arguments, complaint):  # noqa: F811
    files = {"book": b"\f".join([b"word " * 40] * 3), "binary": b"abc\xff", "short": b"short"}
    for name, content in files.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    asked = [each.format(**{name: tmp_path / f"{name}.txt" for name in files}) for each in arguments]
    out = ["--out", str(tmp_path / "out")] if asked[0] == "bench" else []
    done = gradus(*asked, *out)
    assert done.code == 2
    assert complaint in done.err and done.err.count("\n") == done.err.count("gradus: ") == 1
    assert not (tmp_path / "out").exists()
