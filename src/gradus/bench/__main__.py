"""`python -m gradus.bench`: the same commands with the standard library's argument parser.

For machines with only a plain checkout and torch: no typer, no rich, perhaps no matplotlib.

    PYTHONPATH=src:. python -m gradus.bench p01 --device cuda --model random:gpt2-124m --dtype float32
    PYTHONPATH=src:. python -m gradus.bench sampling --device cuda --model random:qwen3-0.6b --dtype bfloat16
    PYTHONPATH=src:. python -m gradus.bench quality --device cuda --model FOLDER --text FILE
    PYTHONPATH=src:. python -m gradus.bench scheduler --requests 1000
    PYTHONPATH=src:. python -m gradus.bench report
    PYTHONPATH=src:. python -m gradus.bench profile p01 --device cuda
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gradus.bench import command
from gradus.device.characters import accept_every_character
from gradus.errors import GradusError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, or 2 for a user's mistake, which it prints in one line."""
    if arguments is None:
        accept_every_character()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        match given[:1]:
            case ["report"]:
                return _report(given[1:])
            case ["profile"]:
                _profile(given[1:])
            case ["scheduler"]:
                _scheduler(given[1:])
            case _:
                _bench(given)
    except GradusError as mistake:
        print(f"gradus: {mistake}", file=sys.stderr)
        return 2
    return 0


def _bench(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradus.bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", help="a phase (p01), ladder, ablation, matrix, all, sampling, or quality")
    _add_model(parser)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--resume", action="store_true", help="leave out what this commit has measured already")
    parser.add_argument("--table", dest="tables", action="append", default=[])
    parser.add_argument("--contender", dest="contenders", action="append", default=[])
    parser.add_argument("--text", type=Path, help="of quality: what is read, documents divided by form feeds")
    parser.add_argument("--impl", type=Path, help="a folder or file with your functions: they get rows of their own")
    parser.add_argument("--commit", help="what the results come from, where git cannot tell")
    options = vars(parser.parse_args(arguments))
    options["tables"], options["contenders"] = tuple(options["tables"]), tuple(options["contenders"])
    command.bench(options.pop("target"), **options)


def _scheduler(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradus.bench scheduler")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--batch", dest="batches", type=int, action="append", default=[])
    parser.add_argument("--policy")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--commit", help="what the results come from, where git cannot tell")
    parser.add_argument("--out", type=Path)
    options = vars(parser.parse_args(arguments))
    command.bench_scheduler(**options | {"batches": tuple(options["batches"])})


def _report(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m gradus.bench report")
    parser.add_argument("root", type=Path, nargs="?", help="a folder of results; the repository's own by default")
    parser.add_argument("--check", action="store_true", help="change nothing, fail if anything is outdated")
    options = parser.parse_args(arguments)
    stale = command.report(options.root, check=options.check)
    return int(options.check and stale > 0)


def _profile(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradus.bench profile")
    parser.add_argument("phase")
    _add_model(parser)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=1)
    options = vars(parser.parse_args(arguments))
    command.profile(options.pop("phase"), **options)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=command.DEFAULT.model)
    parser.add_argument("--device", default=command.DEFAULT.device)
    parser.add_argument("--dtype", default=command.DEFAULT.dtype)
    parser.add_argument("--quantize", help="a scheme (int8, fp8, int4), or a YAML file of patterns and schemes")
    parser.add_argument("--out", type=Path)


if __name__ == "__main__":
    sys.exit(main())
