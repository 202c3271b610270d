"""Where host and device stand, a thousand times a second: python -m phases.museum.s05_overlap.look FILE.

A sampling profiler in a few lines. It changes nothing in the program that it watches, sees all of its threads, and
finds waiting as easily as working: a thread that waits stands still, in the function that waits.
"""

import sys
import threading
from collections import Counter
from pathlib import Path
from time import sleep
from types import FrameType
from typing import Any

from gradus.course.museum import imported


def sampled(overlap: Any, steps: int = 100) -> str:
    """Sample a run with one step of lag. Returns the two most frequent places of each thread, as a table."""
    file, seen = overlap.__file__, Counter[tuple[str, str]]()
    engine = overlap.Engine(overlap.Device(), lag=1)
    host = threading.Thread(target=engine.generate, args=(steps,), name="host")
    host.start()
    while host.is_alive():
        sleep(0.001)
        names = {thread.ident: thread.name.partition("_")[0] for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if names.get(ident) in ("host", "device"):
                seen[names[ident], place(frame, file)] += 1
    lines = [f"{'thread':<8}{'samples':>8}  stands at"]
    for name in ("host", "device"):
        own = Counter({at: count for (thread, at), count in seen.items() if thread == name})
        lines += [f"{name:<8}{count / own.total():>8.0%}  {at}" for at, count in own.most_common(2)]
    return "\n".join(lines)


def place(frame: FrameType | None, file: str) -> str:
    """Name the functions of a file that a chain of calls goes through, the outermost first."""
    names: list[str] = []
    while frame is not None:
        if frame.f_code.co_filename == file:
            names.insert(0, frame.f_code.co_name)
        frame = frame.f_back
    return " > ".join(names) or "nothing to do"


if __name__ == "__main__":
    print(sampled(imported(Path(sys.argv[1]))))
