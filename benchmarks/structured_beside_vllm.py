"""Compare masks with vLLM's: 64 answers that keep to JSON schemas, and 64 free ones, from ours, vLLM and ours.

    PYTHONPATH=src:. python3 benchmarks/structured_beside_vllm.py --vllm DIR --tokenizer qwen2.5-coder-0.5b \
        --out "$OUT"/structured_beside_vllm.json

All read the same folder: a shape's random weights and a real tokenizer (see random_folder.py), with the same schemas
and prompt ids, through `LLM.generate`, which also makes text. The weights being random, the texts are noise that obeys
a grammar; each schema asks for an array longer than the answer may be, so every answer has all its tokens (a run with
fewer does not count). Grammars are compiled in a round that is not timed. Blanks between a JSON's parts are as each
engine allows them by default, so random weights write many; with --compact they are forbidden on both sides, and every
token is one of the data. DIR is vLLM as for beside_vllm.py; without it, ours is measured alone.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.http_cost import Load
from benchmarks.random_folder import write_folder
from benchmarks.server_beside_vllm import FIRST_IDS, VLLM_MEMORY, aligned, write
from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.block_process import Found, run_block, run_vllm
from gradus.bench.run.script import ran
from gradus.bench.studies.beside import OUR_BLOCKS, OURS, THEIR_BLOCK
from gradus.models.precision import resolve_device
from gradus.models.shapes import SHAPES

FREE, MASKED = "free", "schemas"
TEMPERATURE, CONTEXT, MUST = 0.8, 512, 1.3
LOAD, QUICK = Load(64, 1, 64, 128), Load(3, 1, 8, 12)
BLOCK_SECONDS, VLLM_SECONDS = 150, 300
VLLM_BLOCK = Path(__file__).with_name("vllm_block.py")

FIELDS: list[dict[str, Any]] = [
    {"name": {"type": "string", "maxLength": 24}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    {"city": {"type": "string"}, "temperature": {"type": "number"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    {"id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, "active": {"type": "boolean"}},
    {"date": {"type": "string", "format": "date"}, "tags": {"type": "array", "items": {"type": "string"}}},
    {
        "path": {"type": "string"},
        "line": {"type": "integer"},
        "edit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    {"x": {"type": "number"}, "y": {"type": "number"}, "label": {"type": "string", "maxLength": 8}},
    {"to": {"type": "string", "format": "email"}, "subject": {"type": "string"}, "body": {"type": "string"}},
    {"kind": {"const": "order"}, "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1}},
]


def schema(number: int) -> dict[str, Any]:
    """Return an array of objects that no answer here completes."""
    fields = FIELDS[number % len(FIELDS)]
    item = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    return {"type": "array", "items": item, "minItems": 200}


def asked_of(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Describe both cases, the same for both engines (see `gradus.bench.run.block` and vllm_block.py)."""
    load = QUICK if options.quick else LOAD
    ids = load.prompts(min(SHAPES[options.shape].vocab_size, FIRST_IDS), seed=1)
    case = {
        "prompts": [prompt for rounds in ids for prompt in rounds],
        "max_tokens": [load.output] * load.streams,
        "sampling": {"temperature": TEMPERATURE},  # no seeds, so that vLLM takes its fastest path
        "at_once": load.streams,
        "decode_alone": False,
        "new_prompts": False,
        "unmeasured": 1,
    }
    masked = {
        "schemas": [schema(number) for number in range(load.streams)],
        "whitespace": "compact" if options.compact else "bounded",
    }
    return {
        "model": str(folder),
        "config": str(folder),
        "device": options.device,
        "dtype": options.dtype,
        "contender": OURS,
        "interface": "LLM",
        "quantize": None,
        "kv_dtype": "auto",
        "load_format": "auto",
        "text": True,
        "memory_share": VLLM_MEMORY,
        "vllm_options": {
            "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": options.compact}
        },
        "context": CONTEXT,
        "max_sequences": load.streams,
        "cache_tokens": load.streams * CONTEXT,
        "repeats": options.repeats,
        "thorough": False,
        "quick": options.quick,
        "cases": [case | {"label": FREE}, case | masked | {"label": MASKED}],
    }


def measure(options: argparse.Namespace, folder: Path, work: Path) -> dict[str, Any]:
    """Measure the blocks, and write what there is after each."""
    write_folder(folder, options.shape, options.tokenizer, options.device)
    asked = asked_of(options, folder)
    made: dict[str, Any] = {
        "commit": options.commit or commit(),
        **fingerprint(resolve_device(options.device), quick=True),
        **{name: asked[name] for name in ("dtype", "max_sequences", "context", "repeats", "quick", "vllm_options")},
        "shape": options.shape,
        "tokenizer": Path(options.tokenizer).name,
        "compact": options.compact,
        "blocks": {},
    }
    first, second = OUR_BLOCKS
    for block in (first, THEIR_BLOCK, second) if options.vllm else (first,):
        log = options.out.parent / "logs" / f"structured-{block}.txt"
        if block == THEIR_BLOCK:
            found, why = run_vllm(block, options.vllm, VLLM_BLOCK, asked, work, log, VLLM_SECONDS)
        else:
            command = [sys.executable, "-m", "gradus.bench.run.block"]
            found, why = run_block(block, command, asked, work, log, {}, BLOCK_SECONDS)
        print(f"{block}: {why or 'done'}", flush=True)
        made["blocks"][block] = found | ({"failed": why} if why else {})
        write(options.out, made)
    return made


def table(blocks: Mapping[str, Found]) -> list[str]:
    """Format median rates, what masks keep of the free rate, and our rates as times vLLM's."""
    ours = {case: rates(blocks, case, OUR_BLOCKS) for case in (FREE, MASKED)}
    theirs = {case: rates(blocks, case, (THEIR_BLOCK,)) for case in (FREE, MASKED)}
    lines = [["answers", "engine", "tok/s", "of free", "to vLLM", "must", "reached", "samples"]]
    for case in (FREE, MASKED):
        for engine, found in (("vllm", theirs), ("gradus", ours)):
            if not found[case]:
                continue
            rate = median(found[case])
            kept = f"{100 * rate / median(found[FREE]):.1f} %" if found[FREE] else ""
            ratio = rate / median(theirs[case]) if engine == "gradus" and theirs[case] else None
            must = case == MASKED and ratio is not None
            lines.append([
                case, engine, f"{rate:,.0f}", kept, "" if ratio is None else f"{ratio:.2f} ×",
                f"{MUST:g} ×" if must else "", ("yes" if ratio >= MUST else "no") if must and ratio else "",
                " ".join(f"{each:,.0f}" for each in found[case]),
            ])  # fmt: skip
    reasons = [f"{block}, {label}: {case['failed']}" for block, found in blocks.items()
               for label, case in found.get("cases", {}).items() if "failed" in case]  # fmt: skip
    return [*aligned(lines), *reasons]


def rates(blocks: Mapping[str, Found], case: str, names: tuple[str, ...]) -> list[float]:
    """Tokens per second of each sample."""
    samples = [sample for name in names for sample in _samples(blocks.get(name, {}), case)]
    return [sample["output_tokens"] / sample["seconds"] for sample in samples]


def _samples(found: Found, case: str) -> list[dict[str, Any]]:
    return list(found.get("cases", {}).get(case, {}).get("samples", []))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, help="the folder that vLLM was unpacked in")
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--tokenizer", default="qwen2.5-coder-0.5b", help="the model, or folder, with the tokenizer")
    parser.add_argument("--folder", type=Path, help="keep the checkpoint that all read here; by default, a scratch one")
    parser.add_argument("--compact", action="store_true", help="no blanks between a JSON's parts, on both sides")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: three answers of twelve tokens")
    parser.add_argument("--commit", help="the measured commit; by default the one checked out")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        made = measure(options, options.folder or Path(scratch) / options.shape, Path(scratch))
    made["table"] = table(made["blocks"])
    write(options.out, made)
    print("\n".join(made["table"]))
    return 0


if __name__ == "__main__":
    sys.exit(ran(main))
