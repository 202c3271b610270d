"""`gradus serve --explain MODEL`: what a model needs and reaches on a card that need not be here."""

import json
import shlex

import pytest

LLAMA = "random:llama-3.1-8b"


def explained(gradus, model, *arguments):
    done = gradus("serve", "--explain", model, "--json", *arguments)
    assert done.code == 0, done.err
    return json.loads(done.out)


def refused(gradus, *arguments):
    done = gradus("serve", *arguments)
    assert done.code == 2 and done.err.startswith("gradus: ") and done.err.count("\n") == 1, done.err
    return done.err


def test_a_model_on_a_card_that_is_not_here(gradus):
    found = explained(gradus, LLAMA, "--card", "h200", "--objective", "ttft:200,tpot:20")
    assert found["device"] == "NVIDIA H200" and found["weight_bytes"] == pytest.approx(16.06e9, rel=0.01)
    assert found["cache_bytes_per_token"] == 131_072
    assert [row["users"] for row in found["users"]] == [1, 8, 32, 128]
    assert {run["run"] for run in found["measured"]} == {"batch 1", "batch 64", "prefill"}
    users = found["users_in_time"]
    assert 32 < users < 256  # 32 are in time by the rows above, and 256 run at most
    assert shlex.split(found["command"]) == ["gradus", "serve", "--model", LLAMA, "--max-sequences", str(users)]


def test_what_is_printed_for_people_ends_with_the_command(gradus):
    done = gradus("serve", "--explain", LLAMA, "--card", "h200", "--objective", "tpot:20")
    assert done.code == 0, done.err
    lines = done.out.rstrip().split("\n")
    assert lines[-1].startswith("command") and lines[-2].startswith("in time")
    assert sum(line.startswith("measured") for line in lines) == 3


def test_fewer_bits_take_less_memory_and_are_faster(gradus):
    plain, few = (explained(gradus, LLAMA, "--card", "l40s", *more) for more in ((), ("--quantize", "int4")))
    assert few["weight_bytes"] < 0.4 * plain["weight_bytes"]
    assert few["users"][0]["tpot"] < 0.5 * plain["users"][0]["tpot"]
    assert few["prompt_seconds"]["1024"] > 0.9 * plain["prompt_seconds"]["1024"]  # its products are in 16 bits
    assert few["command"].endswith("--quantize int4")


def test_an_8_bit_cache_holds_nearly_twice_as_much(gradus):
    plain, few = (explained(gradus, LLAMA, "--card", "h100", *more) for more in ((), ("--kv-dtype", "fp8")))
    assert 1.8 < few["sessions"]["8192"] / plain["sessions"]["8192"] < 2


def test_two_ranks_halve_the_weights_and_their_time(gradus):
    one, two = (explained(gradus, LLAMA, "--card", "h100", *more) for more in ((), ("--tensor-parallel", "2")))
    assert two["ranks"] == 2 and two["weight_bytes"] == pytest.approx(one["weight_bytes"] / 2, rel=0.01)
    assert 1.3 < one["users"][0]["tpot"] / two["users"][0]["tpot"] < 2


def test_a_mixture_of_experts_reads_those_that_its_rows_choose(gradus):
    found = explained(gradus, "random:qwen3-30b-a3b", "--card", "h200")
    alone, crowd = found["users"][0], found["users"][-1]
    assert found["weight_bytes"] > 60e9
    assert alone["tpot"] < 0.005  # 61 GB at 4.2 TB/s would take 15 ms
    assert crowd["tpot"] > 0.014  # 128 rows read nearly all of them
    assert len(found["measured"]) == 5


def test_what_does_not_fit_is_refused_with_what_would(gradus):
    error = refused(gradus, "--explain", "random:gemma4-12b", "--card", "rtx4090")
    assert "random:gemma4-12b does not fit on NVIDIA GeForce RTX 4090: weights take 24.25 GB of 2" in error
    assert "--quantize int8" in error and "--card rtx5090" in error


def test_the_fewer_bits_that_a_refusal_names_do_fit(gradus):
    explained(gradus, "random:gemma4-12b", "--card", "rtx4090", "--quantize", "int8")


def test_the_device_here_is_meant_without_a_card(gradus):
    found = explained(gradus, "random:tiny-llama", "--device", "cpu", "--dtype", "float32", "--request", "32,16")
    assert found["device"] == "the CPU here" and found["users"][0]["tpot"] > 0
    assert found["request"] == {"prompt": 32, "answer": 16}
    command = found["command"].split()[2:]
    done = gradus("serve", *command, "--port", "0", "--dry-run", "--json")  # it is a command that works
    assert done.code == 0, done.err
    assert json.loads(done.out)["memory"]["max_sequences"] == found["max_sequences"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--explain", LLAMA, "--card", "tpu"], "--card takes h200, h100, a100"),
        (["--explain", LLAMA, "--card", "a100", "--kv-dtype", "fp8"], "compute capability 8.9 or later"),
        (["--explain", LLAMA, "--card", "h100", "--objective", "soon"], "--objective takes milliseconds"),
        (["--explain", LLAMA, "--card", "h100", "--request", "5"], "--request takes tokens in and out"),
        (["--explain", LLAMA, "--phase", "p05"], "leave --phase out"),
        (["--explain", LLAMA, "--card", "h100", "--pipeline-parallel", "2"], "leave --pipeline-parallel out"),
        (["--explain", LLAMA, "--model", "other"], "leave --model out"),
        (["--card", "h100"], "--card goes with --explain MODEL"),
        (["--objective", "tpot:1"], "--objective goes with --explain MODEL"),
        (["--request", "1,2"], "--request goes with --explain MODEL"),
        (["--json"], "--json goes with --dry-run and --explain"),
    ],
)
def test_mistakes_are_refused_in_one_line(gradus, arguments, said):
    assert said in refused(gradus, *arguments)
