"""Serve a model over HTTP, with the engine of any phase.

    python -m phases.p13_serving
    python -m phases.p13_serving --phase p03 --model random:tiny-llama --port 9000
    python -m phases.p13_serving --impl exercises/p13          # with your functions in place of ours

The first SIGTERM or Ctrl-C drains, the second exits at once.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from gradus import LLM, extras, phases
from gradus.config.description import described
from gradus.errors import GradusError
from gradus.loading import Tokenizer
from gradus.server.config import ServerConfig

NAMES = ("phase", "model", "max_sequences", "host", "port", "max_waiting", "request_timeout", "drain_timeout")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in NAMES:
        one = described(ServerConfig)[name]
        parser.add_argument(f"--{name.replace('_', '-')}", type=one.kind, help=one.help)
    parser.add_argument("--impl", type=Path, help="A folder or file with your functions of p13.")
    options = vars(parser.parse_args())
    impl = options.pop("impl")
    try:
        extras.require("server", "this phase")
        p13 = phases.find("p13") if impl is None else phases.solution("p13", impl)
        settings = ServerConfig(phase="p11").merge(options)
        with LLM(**settings.keywords()) as llm:
            places = llm.settings["max_sequences"] + settings.max_waiting
            tokenizer = llm.tokenizer or Tokenizer.of_bytes()
            given = llm.core, tokenizer, llm.checkpoint.name, places, settings
            asyncio.run(run(p13.module("server"), *given))
    except GradusError as error:
        print(f"p13: {error}", file=sys.stderr)
        return 2
    return 0


async def run(module: ModuleType, *given: Any) -> None:
    await module.Server(*given).serve()


if __name__ == "__main__":
    sys.exit(main())
