"""How torch's threads wait for one another. The command line chooses it, before torch is loaded.

On a CPU, a decode step is a few hundred parallel regions of some ten microseconds, and each region ends when its last
thread does. By default a thread that has finished spins for milliseconds. On an idle machine that is the fastest way
to wait. Beside another busy program, the spinning thread uses up its share of the core, the scheduler then takes the
core away, and the next region waits a whole time slice for it. A thread that sleeps instead keeps its claim to the
core and is woken at once. `benchmarks/busy_core.py` measures both.

OpenMP libraries read these variables once, when they are loaded. A program that uses `LLM` sets them itself, before it
imports torch: importing gradus changes no environment. The command line may, because the process is its own.
"""

import sys
from collections.abc import MutableMapping

SLEEP = {"OMP_WAIT_POLICY": "passive"}

# Any of these in the environment is the user's own choice: of OpenMP, GNU's library, and Intel's and LLVM's.
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


def sleep_while_waiting(environment: MutableMapping[str, str]) -> None:
    """Add `SLEEP` to a process's environment, unless it holds one of `CHOICES` or torch is loaded already."""
    if "torch" not in sys.modules and not any(name in environment for name in CHOICES):
        environment.update(SLEEP)
