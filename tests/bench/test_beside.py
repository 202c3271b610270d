"""Gradus measured in alternation with another engine: a stand-in for vLLM that follows the protocol, or breaks it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gradus.bench import command, report
from gradus.bench.record import results
from gradus.bench.record.results import Cell, Entry, Results, Run
from gradus.bench.run import block as our_block
from gradus.bench.run import blocks
from gradus.bench.run.blocks import Side, run_block
from gradus.bench.studies import beside
from gradus.bench.studies.beside import (
    DECODE,
    IN,
    LONG,
    OURS,
    PARAMETERS,
    QUANTIZED,
    SAMPLING,
    STEADY,
    THEIRS,
    Case,
    Target,
    benchmark_of,
    cases_of,
    reached,
    vllm_config,
)
from gradus.bench.workloads import burst, single_stream
from gradus.models import SHAPES, read_config
from tests.bench.conftest import RATES
from tests.bench.test_suites import script

CASES = (
    Case("tiny-llama", "batch 1", single_stream(8, 6), Target(1.3, 2.5, 90)),
    Case("tiny-llama", "batch 3", burst(3, 20, 6), Target(1.0, 1.25, 100, floor_percent=80)),
    Case("tiny-llama", "prefill", burst(2, 24, 1), Target(0.9, 1.0, 380), metric=IN),
    *(
        Case("tiny-llama", label, workload, Target(1.3, 1.7), group=SAMPLING, parameters=parameters)
        for workload in (single_stream(8, 6), burst(3, 8, 6))
        for label, parameters in PARAMETERS.items()
    ),
    Case("tiny-llama", "batch 1", single_stream(8, 6), Target(1.5, 1.8, 100), group="int4-head"),
    Case("tiny-llama", "batch 3", burst(3, 8, 6), Target(1.1, 1.3), metric=DECODE, group="fp8-kv"),
    Case("tiny-llama", "batch 3", burst(3, 40, 6), Target(1.1, 1.5), group=STEADY),
    *beside._long("tiny-llama", prompts=Target(0.97, 1.05), sessions=Target(1.25, 1.5)),
)

STAND_IN = """
import json, os, sys
from pathlib import Path

asked = json.loads(Path(sys.argv[1]).read_text())
described = json.loads((Path(asked["config"]) / "config.json").read_text())
assert described["model_type"] == "llama" and os.environ["PYTHONPATH"].count("site") == 1
cases = {}
for case in asked["cases"]:
    assert (case["sampling"]["temperature"] == 0) == (len(case["prompts"]) == 1)
    assert all(0 <= token < described["vocab_size"] for prompt in case["prompts"] for token in prompt)
    sample = dict(seconds=2.0, completed=len(case["prompts"]), output_tokens=sum(case["max_tokens"]),
                  prompt_tokens=sum(len(prompt) for prompt in case["prompts"]))
    cases[case["label"]] = dict(samples=[sample] * asked["repeats"])
Path(sys.argv[2]).write_text(json.dumps(dict(version="0.26.0", cases=cases)))
"""

HEAD = """
import time
from types import SimpleNamespace

__version__ = "0.26.0"
SamplingParams = SimpleNamespace


"""
VLLM = """
KNOWN = {"temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs"}


class SamplingParams:
    def __init__(self, *, ignore_eos, max_tokens, detokenize, **others):
        assert ignore_eos and not detokenize and set(others) <= KNOWN and others["temperature"] == 1
        self.max_tokens, self.logprobs = max_tokens, others.get("logprobs")
        print("asked", len(others), flush=True)


class LLM:
    def __init__(self, model, max_num_seqs, enable_prefix_caching, **others):
        assert max_num_seqs == 4 and not enable_prefix_caching

    def generate(self, prompts, params, use_tqdm):
        time.sleep(0.001)
        return [SimpleNamespace(outputs=[self.answer(one)]) for _, one in zip(prompts, params, strict=True)]

    def answer(self, params):
        logprobs = [{} for _ in range(params.max_tokens)] if params.logprobs else None
        return SimpleNamespace(token_ids=[1] * params.max_tokens, logprobs=logprobs)
"""


VLLM_IN_8_BITS = """
class LLM:
    def __init__(self, *, quantization, kv_cache_dtype, **others):
        assert (quantization, kv_cache_dtype) == ("fp8", "fp8")
        self.llm_engine, self.waiting, self.running = self, [], {}

    def add_request(self, name, prompt, params):
        self.waiting.append((name, params))
        self.running[name] = [], params

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        time.sleep(0.001)
        for name, (tokens, params) in list(self.running.items())[:2]:
            tokens.append(1)
            if len(tokens) == params.max_tokens:
                del self.running[name]
            yield SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=tokens)])
"""


VLLM_IN_THE_STEADY_STATE = """
class LLM:
    def __init__(self, *, enable_prefix_caching, num_gpu_blocks_override, max_model_len, **others):
        assert enable_prefix_caching and num_gpu_blocks_override * 16 >= max_model_len
        self.seen, self.capacity, self.stored = set(), num_gpu_blocks_override * 16, 0

    def generate(self, prompts, params, use_tqdm):
        began = {tuple(prompt["prompt_token_ids"][:16]) for prompt in prompts}
        assert not began & self.seen, "a prompt begins like one of an earlier round"
        self.seen |= began
        self.stored += sum(len(prompt["prompt_token_ids"]) + one.max_tokens for prompt, one in zip(prompts, params))
        time.sleep(0.001)
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1] * one.max_tokens)]) for one in params]

    def __del__(self):
        assert self.stored >= self.capacity
"""


VLLM_WITH_LONG_CONTEXTS = """
sampling_params = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY="whole"))


class LLM:
    def __init__(self, *, enable_prefix_caching, max_num_batched_tokens, **others):
        assert enable_prefix_caching and max_num_batched_tokens == 16384
        self.llm_engine = self.engine_core = self
        self.scheduler = SimpleNamespace(max_num_scheduled_tokens=max_num_batched_tokens)
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=self.scheduler))
        self.running, self.known, self.asked = {}, [], 0

    def generate(self, prompts, params, use_tqdm):
        time.sleep(0.001 if self.scheduler.max_num_scheduled_tokens == 8192 else 0.05)
        for prompt in prompts:
            assert self.cached(prompt["prompt_token_ids"]) == 0, "a new prompt hits"
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1] * one.max_tokens)]) for one in params]

    def cached(self, prompt):
        same = [next((i for i, pair in enumerate(zip(prompt, one)) if len(set(pair)) == 2), min(len(prompt), len(one)))
                for one in self.known]
        self.known.append(prompt)
        return min(max(same, default=0), len(prompt) - 1) // 16 * 16

    def add_request(self, name, prompt, params):
        ids = prompt["prompt_token_ids"]
        self.running[name] = ids, [], params, self.cached(ids)

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        time.sleep(0.0005)
        out = []
        for name, (ids, tokens, params, cached) in list(self.running.items()):
            tokens.append(7)
            ended = len(tokens) == params.max_tokens
            if ended:
                del self.running[name]
                self.known.append([*ids, *tokens])
            if ended or not hasattr(params, "output_kind"):
                output = SimpleNamespace(token_ids=tokens)
                out.append(SimpleNamespace(request_id=name, outputs=[output], num_cached_tokens=cached))
        return out
"""


@pytest.fixture(scope="module")
def driver():
    return script("beside_vllm")


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.setattr(beside, "CASES", CASES)
    monkeypatch.setattr(beside, "BENCHMARK", benchmark_of(CASES))


def comparison(driver, tmp_path: Path, **others):
    """The comparison of tiny models on this CPU, which writes to out/."""
    return driver.Comparison(
        "tiny-llama", tmp_path, tmp_path / "out", "abc", device="cpu", dtype="float32", quick=True, **others
    )


@pytest.fixture
def second_block_here(monkeypatch):
    """Our second block runs in this process, which has imported what a block needs."""

    def run(side: Side, asked: dict, log: Path):
        if side.command[-1] != our_block.__file__ or asked["thorough"]:
            return run_block(side, asked, log)
        found = log.with_suffix(".json")
        our_block.run_block(asked, found)
        return json.loads(found.read_text()), None

    monkeypatch.setattr(blocks, "run_block", run)


def compared(driver, tmp_path: Path, text: str) -> Run:
    """Run the comparison with `text` in place of vllm_block.py."""
    stand_in = tmp_path / "stand_in.py"
    stand_in.write_text(text)
    comparison(driver, tmp_path, vllm_block=stand_in).measure()
    (run,) = runs_in(tmp_path)
    return run


def measured(driver, tmp_path: Path, group: str, vllm: str) -> Run:
    """Run the cases of a group with HEAD and `vllm` in the place of the package."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "vllm.py").write_text(HEAD + vllm)
    comparison(driver, tmp_path, group=group).measure()
    run = runs_in(tmp_path)[-1]
    for theirs, ours in (cell.entries for cell in run.cells):
        assert len(ours.samples) == 6 and (theirs.skipped or len(theirs.samples) == 3), ours.skipped
    return run


def runs_in(tmp_path: Path) -> list[Run]:
    return results.read(results.path(tmp_path / "out", "cpu", beside.NAME)).runs


def reported(tmp_path: Path) -> str:
    command.report(tmp_path / "out", say=lambda _: None)
    return (tmp_path / "out" / "cpu" / beside.NAME / "report.md").read_text()


@pytest.mark.slow
def test_three_blocks_bring_the_same_work_of_both_sides_and_the_report_shows_all_of_them(
    driver, cases, second_block_here, tmp_path
):
    run = compared(driver, tmp_path, STAND_IN)
    assert [(cell.table, cell.row) for cell in run.cells] == [
        ("tiny-llama", "batch 1"), ("tiny-llama", "batch 3"), ("tiny-llama-prefill", "prefill"),
    ]  # fmt: skip
    for cell in run.cells:
        ours, theirs = cell.entry(OURS), cell.entry(THEIRS)
        assert [sample["block"] for sample in ours.samples] == ["A1"] * 3 + ["A2"] * 3
        assert [sample["block"] for sample in theirs.samples] == ["B"] * 3
        for sample in (*ours.samples, *theirs.samples):
            assert sample["output_tokens"] == cell.workload["output_tokens"]
            assert sample["prompt_tokens"] == cell.workload["prompt_tokens"]
        assert ours.prediction["seconds"] > 0 and not ours.skipped and not theirs.skipped
    assert run.fingerprint["versions"]["vllm"] == "0.26.0" and run.settings["commit"] == "abc"
    out = tmp_path / "out"
    assert driver.is_measured(out, "cpu", "tiny-llama", "float32", "abc")
    assert not driver.is_measured(out, "cpu", "tiny-llama", "float32", "def")
    text = reported(tmp_path)
    assert "A1 · A2" in text and "| tiny-llama | batch 3: " in text and "2.5×" in text and "1.25×, 80 %" in text
    assert not list(report.outdated(out))


@pytest.mark.stress
def test_where_vllm_fails_our_samples_are_kept_with_its_reason(driver, cases, tmp_path):
    run = compared(driver, tmp_path, "raise SystemExit('ModuleNotFoundError: No module named vllm._C')")
    for cell in run.cells:
        assert len(cell.entry(OURS).samples) == 6 and not cell.entry(THEIRS).samples
        assert cell.entry(THEIRS).skipped == "exit code 1: ModuleNotFoundError: No module named vllm._C"
    assert not driver.is_measured(tmp_path / "out", "cpu", "tiny-llama", "float32", "abc")
    assert "tiny-llama, batch 1: vLLM was not measured: exit code 1: ModuleNotFoundError" in reported(tmp_path)


@pytest.mark.stress
def test_sampling_parameters_reach_both_sides_and_stand_in_a_run_beside_the_others(driver, cases, tmp_path):
    results.update(tmp_path / "out", "cpu", beside.NAME, replace(made().runs[0], dtype="float32"))
    run = measured(driver, tmp_path, SAMPLING, VLLM)
    before, _ = runs_in(tmp_path)
    assert (before.key, len(before.cells)) == (("random:tiny-llama", "float32", ""), 3)
    assert run.key == ("random:tiny-llama", "float32", SAMPLING) and run.title == "random:tiny-llama, sampling, float32"
    assert [(cell.table, cell.row) for cell in run.cells] == [
        (f"tiny-llama-sampling-{count}", label) for count in (1, 3) for label in PARAMETERS
    ]
    for cell in run.cells:
        assert cell.entry(THEIRS).samples, cell.entry(THEIRS).skipped
        for sample in cell.entry(OURS).samples:
            assert sample["output_tokens"] == cell.workload["output_tokens"] and sample["steps"] >= 6
            assert sample["ttft_ms"]["p50"] > 0 and sample["tpot_ms"]["p50"] > 0
    log = (tmp_path / "out" / "logs" / "beside-vllm-tiny-llama-sampling-B.txt").read_text()
    assert {f"asked {1 + len(parameters)}" for parameters in PARAMETERS.values()} == {
        line for line in log.splitlines() if line.startswith("asked")
    }
    assert driver.is_measured(tmp_path / "out", "cpu", "tiny-llama", "float32", "abc", SAMPLING)
    text = reported(tmp_path)
    assert "| tiny-llama | batch 3: work |" in text
    assert "| tiny-llama | 5 log-probabilities: 3 requests at once, " in text
    assert "--model tiny-llama --cases sampling" in text and "## random:tiny-llama, sampling, float32" in text


@pytest.mark.stress
def test_matrices_and_keys_in_8_bits_reach_both_sides_and_decoding_counts_from_the_last_first_token(
    driver, cases, tmp_path
):
    run = measured(driver, tmp_path, "fp8-kv", VLLM_IN_8_BITS)
    theirs, ours = run.cells[0].entries
    assert {sample["decode_tokens"] for sample in theirs.samples} == {5}  # two run at once, then the third alone
    for one in (*ours.samples, *theirs.samples):
        assert one["output_tokens"] == 18 and 0 < one["decode_s"] <= one["seconds"]
    log = (tmp_path / "out" / "logs" / "beside-vllm-tiny-llama-fp8-kv-A1.txt").read_text()
    assert "built in" in log
    assert run.settings["quantize"] == "fp8" and run.settings["cache"] == "fp8"
    header, (row,) = beside.summary(Results("cpu", beside.NAME, [run]), QUANTIZED)
    assert dict(zip(header, row, strict=True))["model"] == "tiny-llama, fp8-kv"


@pytest.mark.stress
def test_in_the_steady_state_both_pools_are_full_and_every_round_has_new_prompts(driver, cases, tmp_path):
    run = measured(driver, tmp_path, STEADY, VLLM_IN_THE_STEADY_STATE)
    (cell,) = run.cells
    assert cell.entry(THEIRS).samples, cell.entry(THEIRS).skipped
    for sample in cell.entry("final").samples:
        assert sample["evictions"] >= 3, "each request takes at least a page, and no page is free"
        assert sample["output_tokens"] == cell.workload["output_tokens"]
    assert run.settings["prefix cache"] == "on, and full"
    text = reported(tmp_path)
    assert "The steady state, as in a server that has been up for an hour" in text and "1.1×" in text


@pytest.mark.stress
def test_long_contexts_hit_where_they_should_and_sessions_continue_their_own_answers(driver, cases, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "vllm.py").write_text(HEAD + VLLM_WITH_LONG_CONTEXTS)
    comparison(driver, tmp_path, group=LONG).measure()
    (run,) = runs_in(tmp_path)
    assert (run.settings["prefix cache"], len(run.cells)) == ("on", 8)
    for cell in run.cells:
        ours, theirs = cell.entry("final"), cell.entry(THEIRS)
        assert not ours.skipped and not theirs.skipped, (ours.skipped, theirs.skipped)
        every = [*ours.samples, *theirs.samples]
        for block in ("A1", "B", "A2"):
            seconds = [one["seconds"] for one in every if one["block"] == block]
            assert len(seconds) == 3 or (seconds and sum(seconds) >= beside.GROUPS[LONG].enough_s)
        for one in every:
            assert one["output_tokens"] == cell.workload["output_tokens"]
            assert one["prompt_tokens"] == cell.workload["prompt_tokens"], "whole conversations on both sides"
        hits = [one.get("cached_tokens", 0) for one in ours.samples]
        if cell.table.endswith("prefill"):
            assert set(hits) == {0}
        elif cell.table.endswith("sessions"):
            assert set(hits) == {8 * 16}, "the full page of each first turn and its answer"
            assert ours.prediction["rows"] < cell.workload["prompt_tokens"]
        else:
            assert set(hits) == {cell.batch * 16} and ours.prediction is None, "the prompt's one full page"
        at_8192 = cell.entry(beside.at_budget(8192))
        assert (at_8192 is None) == cell.table.endswith(("hit", "decode"))
        if cell.table.endswith("prefill"):
            assert max(one["seconds"] for one in at_8192.samples) < min(one["seconds"] for one in theirs.samples)
    header, rows = beside.summary(Results("cpu", beside.NAME, [run]), LONG)
    prompts = dict(zip(header, rows[0], strict=True))
    slow = min(one["prompt_tokens"] / one["seconds"] for one in run.cells[0].entry(beside.at_budget(8192)).samples)
    assert float(prompts["vLLM"].split(" ")[0].replace(",", "")) >= 0.99 * slow, "its better budget counts"
    assert [dict(zip(header, row, strict=True))["unit"] for row in rows][-4:] == [
        "tok/s after the last first token", "ms to the answer", "tok/s after the last first token", "seconds",
    ]  # fmt: skip
    assert driver.is_measured(tmp_path / "out", "cpu", "tiny-llama", "float32", "abc", LONG)
    text = reported(tmp_path)
    assert "Long contexts: the same three blocks" in text and "vLLM, 8,192 tokens per step" in text


def test_only_some_cases_are_asked_for_and_what_warms_them_up_follows_from_that(driver, tmp_path):
    def asked(*only: str) -> dict:
        chosen = driver.Comparison("llama-3.2-1b", tmp_path, tmp_path, "abc", group=LONG, only=only).cases
        return driver.described(chosen, device="cpu", dtype="float32", quick=False)

    alone, after = asked("120,000"), asked("120,000", "1 at 120,000")
    assert [case["unmeasured"] for case in alone["cases"]] == [1]
    assert [case["unmeasured"] for case in after["cases"]] == [1, 0], "the decode's first round computes such a prompt"
    assert [case["new_prompts"] for case in after["cases"]] == [False, True]
    assert alone["cache_tokens"] == beside.POOL_TOKENS and alone["context"] == 131_072
    (agents,) = asked("8 agents")["cases"]
    assert len(agents["prompts"]) == 80 and agents["warm_up"] == 16 and agents["follows"][8:16] == list(range(8))
    with pytest.raises(driver.ConfigError, match=r"only must be among '1 at 120,000', .*, got 'batch 1'"):
        asked("batch 1")


def test_some_cases_do_not_replace_the_others_of_an_earlier_run(driver, cases, tmp_path):
    out = tmp_path / "out"
    results.update(out, "h200", beside.NAME, replace(made(LONG).runs[0], dtype="float32"))
    with pytest.raises(driver.ConfigError, match=r"h200/beside-vllm/results\.json: .* 64,000, .*: give another --out"):
        comparison(driver, tmp_path, group=LONG, only=("8,000", "32,000")).measure()


def test_no_new_long_prompt_begins_like_one_of_another_case():
    cases = [case for case in cases_of("llama-3.2-1b", LONG) if case.new_prompts or "hit" not in case.label]
    firsts = [case.workload.arrivals(128_256)[0].prompt for case in cases if case.label != "8 at 32,000"]
    # the first token is the round's number; a page has 16
    assert len({prompt[1:16] for prompt in firsts}) == len(firsts) == 6


def test_every_long_case_leaves_room_in_the_pool_for_what_its_rounds_add():
    for case in beside.CASES:
        if case.group == LONG and case.hits:
            # a round's answers and those of the round before, which are the first to go
            needed = sum(job.prompt + 2 * (job.output + 16) for job in case.workload.jobs)
            assert needed < beside.POOL_TOKENS, "prompts that should hit would be evicted"


@pytest.mark.slow
def test_a_head_in_fewer_bits_is_asked_for_by_patterns(driver, cases, tmp_path):
    asked = comparison(driver, tmp_path, group="int4-head")._asked(cases_of("tiny-llama", "int4-head"), tmp_path)
    assert json.loads(Path(asked["quantize"]).read_text()) == {"lm_head": "int8", "*": "int4"}
    described = json.loads((tmp_path / "tiny-llama" / "config.json").read_text())
    assert described["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] == 128


@pytest.mark.stress
def test_an_answer_without_the_log_probabilities_that_were_asked_for_does_not_count(driver, cases, tmp_path):
    run = measured(driver, tmp_path, SAMPLING, VLLM.replace("if params.logprobs else None", "[:-1]"))
    for cell in run.cells:
        theirs = cell.entry(THEIRS)
        if cell.row == "5 log-probabilities":
            assert theirs.skipped.startswith("RuntimeError: log-probabilities of ") and not theirs.samples
        else:
            assert len(theirs.samples) == 3


def test_cases_that_a_model_does_not_have_are_refused(driver, cases, tmp_path):
    with pytest.raises(driver.ConfigError, match="must be one of tiny-llama for the cases 'sampling', got 'gpt2-124m'"):
        driver.Comparison("gpt2-124m", tmp_path, tmp_path, "abc", group=SAMPLING).measure()


def test_without_a_first_block_of_ours_there_is_nothing_to_compare(driver, cases, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(driver.ConfigError, match="tiny-llama: Gradus did not run: exit code 1"):
        compared(driver, tmp_path, STAND_IN)


def test_a_process_that_takes_too_long_is_ended_and_what_it_wrote_counts(tmp_path):
    script = """echo '{"version": "1"}' > "$2"; exec sleep 60"""  # a shell writes long before the second is over
    found, why = run_block(Side(["sh", "-c", script, "sh"], seconds=1), {}, tmp_path / "log.txt")
    assert (found, why) == ({"version": "1"}, "not done after 1 s")


# -- the report --------------------------------------------------------------------------------------------------------


def sample(seconds: float, block: str, **more: object) -> dict:
    return {"seconds": seconds, "output_tokens": 200, "prompt_tokens": 800, "completed": 1, "block": block, **more}


def made(*groups: str) -> Results:
    """Ours takes 1.0 s, then 1.2 s, theirs 2 s; the floor is 0.9 s. groups: of the cases, a run each."""
    machine = {"hardware": {"gpu": "one"}, "rates": RATES, "versions": {"torch": "2", "vllm": "0.26.0"}}
    settings = {"commit": "abc", "quick": False}
    runs = [
        Run("random:tiny-llama", "bfloat16", "cuda", machine, settings, made_cells(group), group=group)
        for group in groups or ("",)
    ]
    if runs[0].group == "":
        runs[0].cells[1].entries[0] = Entry(THEIRS, None, skipped="not done after 300 s")
    return Results("h200", beside.NAME, runs)


def made_cells(group: str) -> list[Cell]:
    floor = {"seconds": 0.9, "prompt_tokens": 800, "output_tokens": 200, "ttft_p50": 0, "itl_p50": 0, "e2e_p50": 0}
    ours = [sample(1.0, "A1", idle_us={"mean": 12.0}), sample(1.0, "A1"), sample(1.2, "A2"), sample(1.2, "A2")]
    return [
        Cell(case.table, case.label, 0, 1, {"what": "work", "digest": "d"}, [
            Entry(THEIRS, None, [sample(2.0, "B")]), Entry(OURS, floor, [dict(one) for one in ours]),
        ])
        for case in CASES if case.group == group
    ]  # fmt: skip


def test_one_table_says_who_is_faster_by_how_much_and_whether_that_was_asked_for(cases):
    header, rows = beside.summary(made())
    first, second, prefill = (dict(zip(header, row, strict=True)) for row in rows)
    assert first["vLLM tok/s"] == "100" and first["Gradus tok/s"] == "183 (167–200)"
    assert first["A1 · A2"] == "200 · 167"
    assert first["ratio"] == "1.83×" and (first["must"], first["aim"], first["reached"]) == ("1.3×", "2.5×", "must")
    assert first["to its best"] == "1.83×" and first["vLLM's best"] == "90"
    assert first["of the floor"] == "82 %" and first["GPU idle µs"] == "12"
    assert (second["vLLM tok/s"], second["ratio"], second["reached"]) == ("–", "", "")
    assert prefill["vLLM tok/s"] == "400" and prefill["reached"] == "aim"
    assert beside.skipped(made()) == ["tiny-llama, batch 3: vLLM was not measured: not done after 300 s."]


def test_what_is_reached_counts_against_the_best_that_vllm_has_ever_shown(cases, monkeypatch):
    better = replace(beside.CASES[0], target=Target(must=1.3, aim=1.8, best=150))
    monkeypatch.setattr(beside, "CASES", (better, *beside.CASES[1:]))
    header, (row, *_) = beside.summary(made())
    first = dict(zip(header, row, strict=True))
    assert (first["ratio"], first["to its best"], first["reached"]) == ("1.83×", "1.22×", "no")


def test_sampling_parameters_have_a_table_of_their_own_judged_by_the_ratio(cases):
    assert beside.summary(made(), SAMPLING) == ([], [])
    found = made("", SAMPLING)
    assert beside.summary(found) == beside.summary(made())
    header, rows = beside.summary(found, SAMPLING)
    assert len(rows) == 2 * len(PARAMETERS) and not {"to its best", "vLLM's best"} & {*header}
    first = dict(zip(header, rows[0], strict=True))
    assert (first["ratio"], first["must"], first["aim"], first["reached"]) == ("1.83×", "1.3×", "1.7×", "aim")
    found.runs[1].cells[0].entries[0].skipped = "no memory"
    assert beside.skipped(found, SAMPLING) == ["tiny-llama-sampling-1, plain: vLLM was not measured: no memory."]
    assert beside.skipped(found) == beside.skipped(made())


def test_a_run_of_ours_alone_says_so(cases):
    found = made(LONG)
    assert not any("without vLLM" in line for line in beside.skipped(found, LONG))
    for cell in found.runs[0].cells:
        cell.entries = [entry for entry in cell.entries if not entry.contender.startswith(THEIRS)]
    assert beside.skipped(found, LONG) == ["random:tiny-llama, long, bfloat16: measured without vLLM."]


def test_an_aim_that_names_a_share_of_the_floor_wants_both():
    target = Target(must=1.0, aim=1.25, best=1, floor_percent=80)
    assert [reached(target, 1.3, 85), reached(target, 1.3, 70), reached(target, 0.9, 85)] == ["aim", "must", "no"]


@pytest.mark.parametrize("first", ["", SAMPLING])
def test_a_page_shows_the_group_that_it_names_whichever_was_measured_first(cases, tmp_path, first):
    page = tmp_path / "README.md"
    marks = f"<!-- results:begin {beside.NAME}/sampling -->\n<!-- results:end -->\n"
    page.write_text(marks + marks.replace("/sampling", ""))
    results.write(results.path(tmp_path, "h200", beside.NAME), made(first))
    (stale,) = report.outdated_pages(tmp_path, [page])
    assert stale.text.count("Not measured yet: `python benchmarks/beside_vllm.py --cases sampling`") == (first == "")
    assert stale.text.count("Not measured yet: `python benchmarks/beside_vllm.py`") == (first == SAMPLING)
    second = "" if first else SAMPLING
    results.write(results.path(tmp_path, "h200", beside.NAME), made(first, second))
    (stale,) = report.outdated_pages(tmp_path, [page])
    of_sampling, others = stale.text.split("<!-- results:end -->")[:2]
    assert "random:tiny-llama, sampling, bfloat16. Reads" in of_sampling and "random:tiny-llama, bfloat16." in others
    assert "| repetition 1.1: work |" in of_sampling and "| batch 1: work |" not in of_sampling
    assert "| repetition 1.1: work |" not in others and "| batch 1: work |" in others
    page.write_text(stale.text)
    assert not list(report.outdated_pages(tmp_path, [page]))


# -- what is declared --------------------------------------------------------------------------------------------------


def test_every_case_fits_its_context_and_both_engines_get_the_same_model():
    for case in beside.CASES:
        config = SHAPES[case.shape]
        assert case.workload.longest <= min(beside.context_of(case.shape, case.group), config.context_length)
        assert sum(job.follows is None for job in case.workload.jobs) <= beside.GROUPS[case.group].sequences
        theirs = read_config(vllm_config(config))
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"):
            assert getattr(theirs, name) == getattr(config, name)
        assert (theirs.head_dim, theirs.tie_embeddings) == (config.head_dim, config.tie_embeddings)
        assert json.dumps(vllm_config(config))
    for group in beside.GROUPS:
        names = [case.name for case in beside.CASES if case.group == group]
        assert names and len(set(names)) == len(names)
