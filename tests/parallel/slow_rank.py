"""A rank whose layers take STEP_S longer, and whose processor is free meanwhile."""

import sys
import time

from gradus.assembly.rank import main
from gradus.models.families.llama import Llama

STEP_S = 0.06


def slow_down(stages: int) -> None:
    """Make every step take STEP_S in each stage, in this process."""
    run_layers = Llama.run_layers

    def slowly(self, *given):
        time.sleep(STEP_S * stages)
        return run_layers(self, *given)

    Llama.run_layers = slowly


if __name__ == "__main__":
    slow_down(1)
    sys.exit(main(int(sys.argv[1])))
