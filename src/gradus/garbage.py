"""Python's garbage collector, kept from pausing the engine. For our own processes: the server, the command line and
the benchmarks. A program that imports `LLM` decides for itself, and may call `spare_what_stays` once it has loaded.

From time to time the collector looks through everything that is alive. With torch loaded that takes longer than a dozen
decodes: the GPU runs dry and every request waits. What is alive when an engine has been built stays alive as long as
the process, so there is no need to look through it again.

The collector also looks through young objects whenever 700 more were made than freed. As a step of hundreds of decodes
becomes text, it makes hundreds of objects, which are freed soon: they would be looked through again and again, for
nothing.
"""

import gc

YOUNG = 10_000  # objects made and not yet freed before the young ones are looked through


def spare_what_stays() -> None:
    """Collect once, then put everything alive out of the collector's sight. (Reference counts still free it.)

    Changes the collector of the whole process. What an earlier call put out of sight is looked at again, so an engine
    that was replaced is freed.
    """
    gc.set_threshold(YOUNG)
    gc.unfreeze()
    gc.collect()
    gc.freeze()
