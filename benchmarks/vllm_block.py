"""Run vLLM's block of a comparison, in a separate process: `python vllm_block.py ASKED.json FOUND.json`.

beside_vllm.py or speculation.py writes ASKED; `gradus.bench.run.block` describes it. vLLM reads more of it:

    config         the folder of config.json, and of weights if load_format is "auto"; "dummy" makes random ones
    memory_share   of the GPU's memory
    vllm_options   further arguments of vllm.LLM
    at_once        of each case: the number of prompts to submit at a time, the next ones when all of these have ended
    budgets        of each case: tokens per step to measure it with besides the engine's; may be left out

FOUND is written after every case: version, init_s, and for each case its samples, those at other budgets, or the reason
for having none. The script imports nothing from Gradus, because the environment is vLLM's.

vLLM keeps its own best settings (CUDA graphs, torch.compile, its own choice of attention); the engine runs in this
process, as ours does. Tokens are not turned into text, as ours are not.
"""

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # it is no part of vLLM's folder
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def run_block(asked: dict[str, Any], found_file: Path) -> None:
    import vllm

    start = time.perf_counter()
    llm = vllm.LLM(
        model=asked["config"],
        load_format=asked["load_format"],
        skip_tokenizer_init=True,
        dtype=asked["dtype"],
        gpu_memory_utilization=asked["memory_share"],
        max_model_len=asked["context"],
        max_num_seqs=asked["max_sequences"],
        **{"enable_prefix_caching": False, **asked["vllm_options"]},
    )
    found: dict[str, Any] = {"version": vllm.__version__, "init_s": round(time.perf_counter() - start, 1), "cases": {}}
    print(f"vLLM {vllm.__version__}: built in {found['init_s']} s", flush=True)
    for case in asked["cases"]:
        kept: dict[str, Any] = {"samples": []}
        found["cases"][case["label"]] = kept
        try:
            rounds = map(partial(_round, case), itertools.count())
            for _ in range(case.get("unmeasured", 1)):  # every shape is seen before the measured rounds
                _generate(vllm, llm, next(rounds))
            kept["samples"] = _samples(vllm, llm, rounds, asked)
            for budget in case.get("budgets", ()):
                with _tokens_per_step(llm, budget):
                    kept.setdefault("at_budget", {})[str(budget)] = _samples(vllm, llm, rounds, asked)
        except Exception as error:  # the other cases may still run
            kept["failed"] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        found_file.with_suffix(".part").write_text(json.dumps(found))
        os.replace(found_file.with_suffix(".part"), found_file)
        print(case["label"], kept.get("failed") or [sample["seconds"] for sample in kept["samples"]], flush=True)


def _samples(vllm: Any, llm: Any, rounds: Iterator[dict[str, Any]], asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure a case `repeats` times, or until its runs took `enough_s` seconds together."""
    samples: list[dict[str, Any]] = []
    enough = asked.get("enough_s") or math.inf
    while len(samples) < asked["repeats"] and sum(sample["seconds"] for sample in samples) < enough:
        samples.append(_generate(vllm, llm, next(rounds)))
    return samples


@contextmanager
def _tokens_per_step(llm: Any, budget: int) -> Iterator[None]:
    """Lower the scheduler's budget, as max_num_batched_tokens would, without another start of two minutes.

    The engine's buffers and compiled graphs are for more tokens, so any smaller budget is as fast as if it had been
    asked for at the start.
    """
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler  # in this process: no multiprocessing
    own = scheduler.max_num_scheduled_tokens
    scheduler.max_num_scheduled_tokens = min(own, budget)
    try:
        yield
    finally:
        scheduler.max_num_scheduled_tokens = own


def _round(case: dict[str, Any], number: int) -> dict[str, Any]:
    """The case, with prompts that no other round begins alike where it asks for that, and cut where it is not measured
    (see `gradus.bench.run.block`)."""
    some = slice(case.get("warm_up") if number < case.get("unmeasured", 1) else None)
    cut = {name: case[name][some] for name in ("prompts", "max_tokens", "follows") if name in case}
    if case.get("new_prompts"):
        cut["prompts"] = [[number + 1, *prompt[1:]] for prompt in cut["prompts"]]
    return case | cut


def _generate(vllm: Any, llm: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Measure one sample: seconds from the call to the last token, and the numbers of tokens requested and
    generated."""
    if any(before is not None for before in case.get("follows", ())):
        return _converse(vllm, llm.llm_engine, case)
    prompts = [{"prompt_token_ids": prompt} for prompt in case["prompts"]]
    params = [_params(vllm, case, most) for most in case["max_tokens"]]
    if case["decode_alone"]:
        return _decode_alone(llm.llm_engine, prompts, params)
    start = time.perf_counter()
    outputs = []
    for first in range(0, len(prompts), case["at_once"]):
        group = slice(first, first + case["at_once"])
        outputs += llm.generate(prompts[group], params[group], use_tqdm=False)
    seconds = time.perf_counter() - start
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    if lengths != case["max_tokens"]:
        raise RuntimeError(f"{sum(lengths)} tokens came instead of {sum(case['max_tokens'])}")
    if "logprobs" in case["sampling"]:
        reported = [len(output.outputs[0].logprobs or ()) for output in outputs]
        if reported != lengths:
            raise RuntimeError(f"log-probabilities of {sum(reported)} tokens came instead of {sum(lengths)}")
    return {
        "seconds": round(seconds, 5),
        "completed": len(outputs),
        "output_tokens": sum(lengths),
        "prompt_tokens": sum(len(prompt) for prompt in case["prompts"]),
    }


def _params(vllm: Any, case: dict[str, Any], most: int, **more: Any) -> Any:
    return vllm.SamplingParams(**case["sampling"], ignore_eos=True, max_tokens=most, detokenize=False, **more)


def _decode_alone(engine: Any, prompts: list[Any], params: list[Any]) -> dict[str, Any]:
    """Generate step by step, as `generate` does, to see when the last request has its first token."""
    start = time.perf_counter()
    for number, (prompt, param) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(str(number), prompt, param)
    counts: dict[str, int] = {}
    cached: dict[str, int] = {}
    began, before = 0.0, 0
    while engine.has_unfinished_requests():
        outputs = list(engine.step())
        now = time.perf_counter()
        for output in outputs:
            counts[output.request_id] = len(output.outputs[0].token_ids)
            cached[output.request_id] = getattr(output, "num_cached_tokens", None) or 0
        if not began and len(counts) == len(prompts):
            began, before = now, sum(counts.values())
    ended = time.perf_counter()
    if sum(counts.values()) != sum(param.max_tokens for param in params):
        raise RuntimeError(f"{sum(counts.values())} tokens came instead of {sum(each.max_tokens for each in params)}")
    return {
        "seconds": round(ended - start, 5),
        "decode_s": round(ended - began, 5),
        "decode_tokens": sum(counts.values()) - before,
        "completed": len(counts),
        "output_tokens": sum(counts.values()),
        "prompt_tokens": sum(len(prompt["prompt_token_ids"]) for prompt in prompts),
        "cached_tokens": sum(cached.values()),
    }


def _converse(vllm: Any, engine: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Run conversations: a turn is submitted as soon as the one before it has ended, and begins with its tokens.

    Only whole answers are asked for, which costs vLLM the least.
    """
    whole = vllm.sampling_params.RequestOutputKind.FINAL_ONLY
    params = [_params(vllm, case, most, output_kind=whole) for most in case["max_tokens"]]
    next_turn = {before: turn for turn, before in enumerate(case["follows"]) if before is not None}
    prompts = dict(enumerate(case["prompts"]))
    lengths: dict[int, int] = {}
    cached = 0

    def ask(turn: int) -> None:
        engine.add_request(str(turn), {"prompt_token_ids": prompts[turn]}, params[turn])

    start = time.perf_counter()
    for turn, before in enumerate(case["follows"]):
        if before is None:
            ask(turn)
    while engine.has_unfinished_requests():
        for output in engine.step():
            turn, answer = int(output.request_id), list(output.outputs[0].token_ids)
            lengths[turn] = len(answer)
            cached += getattr(output, "num_cached_tokens", None) or 0
            if turn in next_turn:
                follower = next_turn[turn]
                prompts[follower] = [*prompts[turn], *answer, *prompts[follower]]
                ask(follower)
    seconds = time.perf_counter() - start
    if [lengths.get(turn) for turn in range(len(params))] != case["max_tokens"]:
        raise RuntimeError(f"{sum(lengths.values())} tokens came instead of {sum(case['max_tokens'])}")
    return {
        "seconds": round(seconds, 5),
        "completed": len(lengths),
        "output_tokens": sum(lengths.values()),
        "prompt_tokens": sum(len(prompt) for prompt in prompts.values()),
        "cached_tokens": cached,
    }


if __name__ == "__main__":
    run_block(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
