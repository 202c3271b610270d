"""Python's garbage collector, kept from pausing the engine.

Now and then it looks through everything that lives. With torch loaded, and all it brings along, that takes longer than
a dozen decodes: the GPU runs dry and everybody waits. What is there when an engine has been built stays as long as the
process, so it need not be looked through again.

And it looks through whatever is young when 700 objects more were made than let go of. A step of 256 decodes makes a
thousand, which go when it is committed: they would be looked at in every step, for nothing.
"""

import gc

YOUNG = 10_000  # objects that may be made and not let go of before the young ones are looked through


def spare_what_stays() -> None:
    """Collect once, then put all that is alive out of the collector's sight. (Reference counts still free it.)

    What an earlier call put there is looked at again, so an engine that was replaced is let go of.
    """
    gc.set_threshold(YOUNG)
    gc.unfreeze()
    gc.collect()
    gc.freeze()
