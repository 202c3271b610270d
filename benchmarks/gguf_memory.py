"""Measure what a GGUF file takes in memory, and how fast its bits are multiplied, compared with the file widened.

    PYTHONPATH=src:. python3 benchmarks/gguf_memory.py --model gemma3-270m --out benchmarks/gguf_memory.json
    PYTHONPATH=src:. python3 benchmarks/gguf_memory.py --shape llama-3.1-8b --folder /tmp --kept-only
    PYTHONPATH=src:. python3 benchmarks/gguf_memory.py --shape llama-3.2-1b --device cuda --out benchmarks/gguf_gpu.json

With --shape, it writes a file first, with the types that llama.cpp's Q4_K_M has and random bits in all of them, and
deletes it in the end. Each row is a process of its own, which loads the model, answers, and says how much memory it
had at most. In the kept row the file's pages count as memory, though they are the system's cache of the file. With
--device cuda, answers of several streams are timed too. Rounds take turns, and the best of each is kept. With --out,
other models in the file stay there.
"""

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from gradus.bench.run.script import ran
from gradus.models.config import ModelConfig
from gradus.models.shapes import SHAPES

ROUNDS, PROMPT, ANSWER = 2, 512, 48
STREAMS = {"cpu": (1,), "cuda": (1, 8, 64)}
KEPT, WIDE = "kept", "bfloat16"
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model of `gradus models`, or a .gguf file")
    parser.add_argument("--shape", help="a Llama of `gradus models`, to write a file of random bits for")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where that file goes")
    parser.add_argument("--kept-only", action="store_true", help="do not widen the model too")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--device", choices=tuple(STREAMS), default="cpu")
    parser.add_argument("--commit", help="the measured commit; by default the one checked out")
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens of the prompt that is timed")
    parser.add_argument("--out", type=Path, help="where results go; stdout by default")
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "HOW"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        model, how = asked.child
        print(json.dumps(measure(model, how, asked.prompt, asked.device)))
        return
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        model = asked.model or str(written(SHAPES[asked.shape], Path(folder) / f"{asked.shape}.gguf"))
        rows = in_turns(model, [KEPT] if asked.kept_only else [KEPT, WIDE], asked.rounds, asked.prompt, asked.device)
    from gradus.bench.measure.fingerprint import commit, fingerprint  # here: children import what they measure
    from gradus.models.precision import resolve_device

    machine = fingerprint(resolve_device(asked.device), quick=True)
    here = {"commit": asked.commit or commit(), "prompt": asked.prompt, "rows": rows}
    before = json.loads(asked.out.read_text())["models"] if asked.out and asked.out.exists() else {}
    text = json.dumps({**machine, "models": before | {asked.model or asked.shape: here}}, indent=1)
    if asked.out:
        asked.out.write_text(text + "\n")
    print(text)


def in_turns(model: str, ways: list[str], rounds: int, prompt: int, device: str) -> list[dict[str, Any]]:
    """Run a process per way and round. Returns the best of each figure, by way."""
    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for how in ways:
            command = [sys.executable, __file__, "--child", model, how, "--prompt", str(prompt), "--device", device]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            row = json.loads(done.stdout.splitlines()[-1])
            before = best.setdefault(how, row)
            for name, value in row.items():
                if name.endswith("_per_s"):
                    before[name] = max(before[name], value)
                elif isinstance(value, float):
                    before[name] = min(before[name], value)
    return list(best.values())


def measure(model: str, how: str, prompt: int = PROMPT, device: str = "cpu") -> dict[str, Any]:
    """Load the model in this process, and answer. MB are millions of bytes: before anything is loaded, once the model
    is, and at most."""
    from gradus import LLM, SamplingParams
    from gradus.text import llm as front_end

    assert front_end  # its code counts before
    if device == "cpu":
        import gradus.kernels.cpu.model  # noqa: F401
    before, start = peak_mb(), time.perf_counter()
    streams, dtype = STREAMS[device], "auto" if how == KEPT else how
    llm = LLM(model, device=device, dtype=dtype, context_length=2048, max_sequences=max(streams))
    loaded, loaded_mb = time.perf_counter(), peak_mb()
    draw = random.Random(0)

    def seconds(length: int, answer: int, at_once: int = 1) -> float:
        prompts = [[draw.randrange(llm.config.vocab_size) for _ in range(length)] for _ in range(at_once)]
        begin = time.perf_counter()
        llm.generate(prompts, SamplingParams(max_tokens=answer, ignore_eos=True))
        return time.perf_counter() - begin

    def decode_rate(at_once: int) -> float:
        one, more = seconds(8, 1, at_once), seconds(8, 1 + ANSWER, at_once)
        return round(at_once * ANSWER / (more - one), 2)

    seconds(8, 1)
    first = time.perf_counter()
    rates = {each: decode_rate(each) for each in streams}
    seconds(prompt, 1)
    return {
        "how": how,
        "weights": llm.precision.title,
        "load_s": round(loaded - start, 2),
        "first_token_s": round(first - start, 2),
        "decode_tokens_per_s": rates.pop(1),
        **{f"decode_{each}_streams_tokens_per_s": rate for each, rate in rates.items()},
        "prompt_tokens_per_s": round(prompt / seconds(prompt, 1), 1),
        "before_mb": before,
        "loaded_mb": loaded_mb,
        "peak_mb": peak_mb(),
    }


def peak_mb() -> float:
    """The most memory that this process has had. (ru_maxrss would begin with that of the process that started it.)"""
    status = Path("/proc/self/status")
    if status.exists():
        return round(int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6, 1)
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1)


# -- a file of random bits ---------------------------------------------------------------------------------------------


def written(config: ModelConfig, path: Path) -> Path:
    """Write a Llama with the types of Q4_K_M, and a vocabulary of its size. Raises SystemExit if the disk is full."""
    shapes = dict(tensors(config))
    needed = sum(bytes_of(shape, kind_of(name, shape, config)) for name, shape in shapes.items())
    if (free := shutil.disk_usage(path.parent).free) < needed + (1 << 30):
        raise SystemExit(f"{path.parent} has {free / 1e9:.1f} GB free, the file needs {needed / 1e9:.1f} GB and 1 more")
    writer = gguf.GGUFWriter(path, "llama")
    describe(writer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_layers)
    for name, shape in shapes.items():
        kind, stored = kind_of(name, shape, config), names.get_name(name, try_suffixes=(".weight",))
        assert stored is not None, name
        plain = kind == Type.F32
        bytes_shape = shape if plain else (*shape[:-1], bytes_of(shape[-1:], kind))
        count = bytes_of(shape, kind)
        writer.add_tensor_info(stored, bytes_shape, np.dtype(np.float32 if plain else np.uint8), count, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    draw = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.write_tensor_data(values(shape, kind_of(name, shape, config), draw))
    writer.close()
    return path


def tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Hugging Face's names, and shapes."""
    from gradus.models import create_model
    from gradus.models.weights import plan

    for piece in plan(create_model(config, device="meta")):
        yield piece.stored.name, piece.shape


def kind_of(name: str, shape: tuple[int, ...], config: ModelConfig) -> Type:
    """Choose as llama.cpp's Q4_K_M does: more bits for the head, and for v and down in half of the layers."""
    if len(shape) == 1:
        return Type.F32
    layers = config.num_layers
    layer = int(name.split(".")[2]) if ".layers." in name else 0
    outer = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    more = name == HEAD or (name == TABLE and config.tie_embeddings)
    more |= outer and (".v_proj." in name or ".down_proj." in name)
    if shape[-1] % 256:
        return Type.Q8_0 if more else Type.Q5_0
    return Type.Q6_K if more else Type.Q4_K


def bytes_of(shape: tuple[int, ...], kind: Type) -> int:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return prod(shape) // block * size


def values(shape: tuple[int, ...], kind: Type, draw: np.random.Generator) -> np.ndarray:
    """Random bits, with scales that make weights of about 0.02."""
    if kind == Type.F32:
        return np.ones(shape, np.float32)
    blocks = draw.integers(0, 256, bytes_of(shape, kind), np.uint8).reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    scales = {Type.Q4_K: (4e-5, 3e-4), Type.Q6_K: (1e-5,), Type.Q5_0: (2e-3,), Type.Q8_0: (3e-4,)}[kind]
    at = 208 if kind == Type.Q6_K else 0
    blocks[:, at : at + 2 * len(scales)] = np.array(scales, np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def describe(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope.theta if config.rope else 10000.0)
    bytes_as_text = [chr(code) for code in range(256, 512)]  # any 256 letters
    pairs = [(one, other) for one in bytes_as_text for other in bytes_as_text]
    pairs += [("".join(pair), bytes_as_text[0]) for pair in pairs]
    pairs = pairs[: max(0, config.vocab_size - 257)]
    tokens = [*bytes_as_text[: config.vocab_size - 1], "<|end|>", *("".join(pair) for pair in pairs)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token == "<|end|>" else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in pairs])
    writer.add_eos_token_id(tokens.index("<|end|>"))


if __name__ == "__main__":
    sys.exit(ran(main))
