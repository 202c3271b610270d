"""Check that vLLM reads checkpoints of `gradus quantize`, and reads them as our engine does.

    PYTHONPATH=src:. python3 benchmarks/vllm_reads_ours.py --vllm DIR --out benchmarks/vllm_reads_ours.json

A small random Llama is made on the spot and quantized in each scheme. vLLM and our engine load each folder on the same
GPU, one after the other, and continue the same prompts greedily. Both report the log-probabilities of the likeliest
tokens. Positions are compared up to the first where the two texts part, since after it their inputs differ.
No log-probability may differ by more than BOUND.

Copies of the folder with one error each show that this bound detects errors: the order of nibbles, zero points, or the
row of a scale, as a reader of another format would misread them. Our engine answers from each copy.
The answers have to differ from vLLM's answers to the intact folder by FAR times BOUND, or the scheme fails as well
(exit code 1). The difference of the unquantized model is reported for comparison.

DIR is vLLM as for beside_vllm.py. A scheme takes half a minute, mostly for vLLM's start.
"""

import argparse
import gc
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gradus import LLM, SamplingParams
from gradus.bench.measure.fingerprint import commit, hardware_name, versions
from gradus.bench.measure.memory import release
from gradus.bench.run.block_process import run_vllm
from gradus.bench.run.script import ran
from gradus.bench.statistics import significant
from gradus.calibration.files import words
from gradus.calibration.quantize import Recipe, quantize
from gradus.errors import GradusError
from gradus.loading import open_checkpoint
from gradus.loading.progress import Silent
from gradus.loading.quantized.formats import AWQ_ORDER, nibbles
from gradus.models import create_model
from gradus.models.families.records import read_config
from gradus.models.precision import DTYPES, resolve_device
from gradus.models.weights import plan

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 0,
}
RECIPES = {
    "int8": Recipe("int8"),
    "fp8": Recipe("fp8"),
    "int4": Recipe("int4", group=128),
    "int4-g32": Recipe("int4", group=32),
}
USUAL = ("int8", "fp8", "int4")
PROMPTS, PROMPT, TOKENS, TOP = 8, 40, 32, 20
# Both are in nats. Where activations are rounded to 8 bits, the last bit of an earlier sum moves some by a whole step.
# So two right readers differ by about the error of rounding. tests/benchmarks/test_vllm_reads_ours.py checks on a CPU,
# with bfloat16 against float32, that this is below BOUND, and that wrong copies differ by more than FAR times as much.
BOUND, FAR = 0.6, 3

VLLM_BLOCK = Path(__file__).with_name("vllm_block.py")
VLLM_SECONDS = 120
VLLM_MEMORY = 0.1  # of the GPU's
VLLM_OPTIONS = {"enforce_eager": True}


# -- the model ---------------------------------------------------------------------------------------------------------


def write_model(folder: Path, seed: int = 0) -> None:
    """Write a checkpoint as transformers would save it, whose scales and zero points all differ.

    Rows of a matrix, and blocks of 32 weights in a row, are drawn with different spreads and means, so that no row's or
    block's parameters fit its neighbor.
    """
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for piece in plan(create_model(read_config(SHAPE), device="meta")):
        name = piece.stored.name
        tensors[name] = _values(name, tuple(piece.stored.file_shape(piece.shape)), draw).bfloat16()
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(SHAPE, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": SHAPE["eos_token_id"]}))


def _values(name: str, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return 1 + 0.1 * torch.randn(shape, generator=draw)
    if name.startswith("model.embed"):
        return torch.randn(shape, generator=draw)
    rows, width = shape
    if name.startswith("lm_head"):
        return 2.5 * width**-0.5 * torch.randn(shape, generator=draw)  # logits with a standard deviation of 2.5
    of_row, of_block = (rows, 1, 1), (rows, width // 32, 1)
    octaves = 2 * torch.rand(of_row, generator=draw) + 2 * torch.rand(of_block, generator=draw) - 2
    blocks = torch.randn(rows, width // 32, 32, generator=draw) + 0.5 * torch.randn(of_block, generator=draw)
    return 0.5 * width**-0.5 * (blocks * torch.exp2(octaves)).flatten(1)


def prompts(seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(1, SHAPE["vocab_size"]) for _ in range(PROMPT)] for _ in range(PROMPTS)]


# -- copies that are wrong in one thing --------------------------------------------------------------------------------


def _as_awq_orders(packed: Tensor) -> Tensor:
    """Put the nibbles of a word in AWQ's order."""
    return words(nibbles(packed)[..., AWQ_ORDER].flatten(1))


def _one_less(packed: Tensor) -> Tensor:
    """Decrease each nibble by one, as the first version of GPTQ's format stores zero points; 0 becomes 15."""
    return words(((nibbles(packed) - 1) & 15).flatten(1))


def _of_the_row_before(scales: Tensor) -> Tensor:
    return scales.roll(1, 0)


Wrong = tuple[str, Callable[[Tensor], Tensor]]
"""The end of the names of the tensors to change, and the change."""

WRONG: dict[str, Wrong] = {
    "scales of the row before": ("weight_scale", _of_the_row_before),
    "nibbles in AWQ's order": ("weight_packed", _as_awq_orders),
    "zero points one less": ("weight_zero_point", _one_less),
}


def wrong_copies(folder: Path, work: Path) -> dict[str, Path]:
    """Write the wrong copies, by their error; none for tensors that the scheme does not have."""
    found = {}
    for number, (what, (end, change)) in enumerate(WRONG.items()):
        copy = work / f"{folder.name}-wrong-{number}"
        shutil.copytree(folder, copy)
        changed = 0
        for file in copy.glob("*.safetensors"):
            tensors = load_file(file)
            named = [name for name in tensors if name.endswith(end)]
            save_file(tensors | {name: change(tensors[name]) for name in named}, file, metadata={"format": "pt"})
            changed += len(named)
        if changed:
            found[what] = copy
    return found


# -- the answers -------------------------------------------------------------------------------------------------------

Likeliest = Mapping[int, float]
"""Token id → log-probability, for the TOP likeliest tokens at a position."""


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt: its tokens, and the likeliest tokens at each position."""

    token_ids: Sequence[int]
    likeliest: Sequence[Likeliest]


def ours(folder: Path, device: torch.device, dtype: str, switch_off: tuple[str, ...] = ()) -> list[Answer]:
    """Get the final engine's answers, and close it: vLLM needs the memory."""
    llm = LLM(
        str(folder), device=str(device), dtype=dtype, context_length=PROMPT + TOKENS, max_sequences=PROMPTS,
        cache_tokens=PROMPTS * (PROMPT + TOKENS + 16), switch_off=switch_off,
    )  # fmt: skip
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, logprobs=TOP)
    answers = [
        Answer(done.token_ids, [dict(place.top) for place in done.logprobs or ()])
        for done in llm.generate(prompts(), params)
    ]
    del llm
    release(device)
    return answers


def theirs(folder: Path, vllm: Path, dtype: str, work: Path, log: Path) -> tuple[list[Answer], dict[str, Any], str]:
    """Get vLLM's answers, its description of itself, and the reason if there are no answers."""
    asked = {
        "config": str(folder),
        "load_format": "auto",
        "dtype": dtype,
        "memory_share": VLLM_MEMORY,
        "context": PROMPT + TOKENS,
        "max_sequences": PROMPTS,
        "vllm_options": VLLM_OPTIONS,
        "repeats": 1,
        "cases": [
            {
                "label": "answers",
                "prompts": prompts(),
                "max_tokens": [TOKENS] * PROMPTS,
                "sampling": {"temperature": 0.0, "logprobs": TOP},
                "at_once": PROMPTS,
                "decode_alone": False,
                "answers": True,
            }
        ],
    }
    found, why = run_vllm(folder.name, vllm, VLLM_BLOCK, asked, work, log, VLLM_SECONDS)
    facts: dict[str, Any] = {name: found[name] for name in ("version", "init_s") if name in found}
    case = found.get("cases", {}).get("answers", {})
    if not case.get("samples"):
        return [], facts, case.get("failed") or why or "vLLM returned nothing"
    answers = [
        Answer(one["token_ids"], [{int(token): value for token, value in place} for place in one["likeliest"]])
        for one in case["samples"][0]["answers"]
    ]
    return answers, facts, ""


# -- the comparison ----------------------------------------------------------------------------------------------------


def difference(one: Likeliest, other: Likeliest) -> float:
    """The largest difference between any token's two log-probabilities at a position.

    A token that only one side reports has, on the other side, at most the log-probability of the last one reported
    there.
    """
    common = (abs(one[token] - other[token]) for token in one.keys() & other.keys())
    missing = (
        side[token] - min(against.values())
        for side, against in ((one, other), (other, one))
        for token in side.keys() - against.keys()
    )
    return max(0.0, *common, *missing)


@dataclass(frozen=True)
class Comparison:
    """positions: the number compared, in all answers. same_tokens: positions with the same token. same_texts: equal
    answers.

    largest, mean: of the differences at all positions.
    """

    positions: int
    same_tokens: int
    same_texts: int
    largest: float
    mean: float

    @classmethod
    def of(cls, ours: Sequence[Answer], theirs: Sequence[Answer]) -> "Comparison":
        found, same_tokens, same_texts = [], 0, 0
        for one, other in zip(ours, theirs, strict=True):
            for step, pair in enumerate(zip(one.token_ids, other.token_ids, strict=True)):
                found.append(difference(one.likeliest[step], other.likeliest[step]))
                if pair[0] != pair[1]:
                    break
                same_tokens += 1
            else:
                same_texts += 1
        return cls(len(found), same_tokens, same_texts, significant(max(found)), significant(sum(found) / len(found)))


@dataclass(frozen=True)
class Verdict:
    """The result of one scheme. why: the reason if vLLM did not answer. wrong: each wrong copy's comparison. before:
    the unquantized model's."""

    scheme: str
    vllm: dict[str, Any]
    why: str
    intact: Comparison | None
    wrong: dict[str, Comparison]
    before: Comparison | None
    seconds: float

    @property
    def passed(self) -> bool:
        detected = bool(self.wrong) and all(one.largest > FAR * BOUND for one in self.wrong.values())
        return self.intact is not None and self.intact.largest <= BOUND and detected


def judge(
    scheme: str, source: Path, before: list[Answer], vllm: Path, device: torch.device, dtype: str, work: Path, log: Path
) -> Verdict:
    """Quantize the model, ask both engines, and ask ours with each wrong copy."""
    began = time.perf_counter()
    folder = work / scheme
    quantize(open_checkpoint(str(source)), folder, RECIPES[scheme], None, device=device, progress=Silent())
    answers, facts, why = theirs(folder, vllm, dtype, work, log)
    if not answers:
        return Verdict(scheme, facts, why, None, {}, None, significant(time.perf_counter() - began))
    intact = Comparison.of(ours(folder, device, dtype), answers)
    wrong = {
        what: Comparison.of(ours(copy, device, dtype, ("graphs", "kernels")), answers)
        for what, copy in wrong_copies(folder, work).items()
    }
    seconds = significant(time.perf_counter() - began)
    return Verdict(scheme, facts, "", intact, wrong, Comparison.of(before, answers), seconds)


def show(verdict: Verdict) -> None:
    if verdict.intact is None:
        print(f"{verdict.scheme}: FAILED: vLLM did not answer: {verdict.why}", flush=True)
        return
    print(f"{verdict.scheme}: {'passed' if verdict.passed else 'FAILED'} in {verdict.seconds:.0f} s", flush=True)
    every = {"as written": verdict.intact, **verdict.wrong, "before quantization": verdict.before}
    for what, one in every.items():
        assert one is not None
        print(
            f"  {what}: {one.largest:.3g} at most, {one.mean:.3g} on average; {one.same_tokens} of {one.positions} "
            f"tokens and {one.same_texts} of {PROMPTS} texts are the same",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, required=True, help="the folder that vLLM was unpacked in")
    parser.add_argument("--scheme", action="append", choices=[*RECIPES], help=f"may be repeated; {', '.join(USUAL)}")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="of activations, on both sides")
    parser.add_argument("--commit", help="the tested commit; by default the one checked out")
    parser.add_argument("--out", type=Path, help="a JSON file; vLLM's output goes into logs/ next to it")
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except GradusError as mistake:
        print(f"gradus: {mistake}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    device = resolve_device(options.device)
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="gradus-vllm-reads-") as scratch:
        work = Path(scratch)
        source = work / "model"
        write_model(source)
        before = ours(source, device, options.dtype, ("graphs", "kernels"))
        for scheme in options.scheme or USUAL:
            log = (options.out.parent / "logs" if options.out else work) / f"vllm-reads-{scheme}.txt"
            verdicts.append(judge(scheme, source, before, options.vllm, device, options.dtype, work, log))
            show(verdicts[-1])
            gc.collect()
            if options.out:
                write(options.out, options, device, verdicts)
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def write(file: Path, options: argparse.Namespace, device: torch.device, verdicts: Sequence[Verdict]) -> None:
    """Write the results so far, after every scheme."""
    about = {
        "hardware": hardware_name(device),
        "versions": versions() | {"vllm": next((one.vllm["version"] for one in verdicts if one.vllm), None)},
        "commit": options.commit or commit(),
        "dtype": options.dtype,
        "model": {name: SHAPE[name] for name in SHAPE if name.endswith(("_size", "_layers", "_heads", "_dim"))},
        "prompts": PROMPTS,
        "prompt_tokens": PROMPT,
        "tokens": TOKENS,
        "likeliest": TOP,
        "bound": BOUND,
        "far": FAR,
    }
    schemes = [asdict(verdict) | {"passed": verdict.passed} for verdict in verdicts]
    file.write_text(json.dumps(about | {"schemes": schemes}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(ran(main))
