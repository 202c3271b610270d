"""Python's garbage collector, kept from pausing an engine. `LLM` does this unless it is built with gc_freeze=False; a
server's front end always does.

From time to time the collector looks through everything that is alive. With torch loaded that takes longer than a dozen
decodes: the GPU runs dry and every request waits. What is alive when an engine has been built stays alive as long as
the engine, so there is no need to look through it again.

The collector also looks through young objects whenever 700 more were made than freed. As a step of hundreds of decodes
becomes text, it makes hundreds of objects, which are freed soon: they would be looked through again and again, for
nothing.
"""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 10_000  # objects made and not yet freed before the young ones are looked through

_has_spared = False  # `gc.get_freeze_count` would say so too, but counts all that is spared, one by one


def see_all() -> None:
    """Put everything into the collector's sight again, and collect: an engine that is gone may have left cycles."""
    gc.unfreeze()
    gc.collect()


def see_all_of_earlier_engines() -> None:
    """Where there was an engine in this process: the next one needs the memory that its cycles may hold."""
    if _has_spared:
        see_all()


@contextmanager
def paused() -> Iterator[None]:
    """Collect nothing within the block, which makes many objects that stay: looking through them again and again takes
    a fifth of a small engine's load. Reference counts still free what has no cycles."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def spare_what_stays(owner: object) -> None:
    """Collect once, then put everything alive out of the collector's sight. (Reference counts still free it.)

    Changes the collector of the whole process. All of it is in sight again once `owner` is gone, so that the cycles it
    was part of can be freed, and whenever this is called for another owner.
    """
    global _has_spared
    _has_spared = True
    gc.set_threshold(YOUNG)
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    weakref.finalize(owner, gc.unfreeze).atexit = False
