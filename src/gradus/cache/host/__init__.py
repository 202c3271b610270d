"""Pages in host memory behind a GPU's, and files behind that: what the pool gives up comes back instead of being
computed again. No torch here.

    slots.py    places of host memory, by the name of the page that each holds, in LRU order
    copies.py   what a device must do: copies between pages and places, while steps run; the argument why that is safe
    files.py    threads that write places to files and read them back
    tier.py     which pages are copied when, and pages on their way back

**When to copy.** A page could be copied out when it is published, or when the pool evicts it. Both cost the same bus
time once the pool is full, because every page that is computed then pushes another one out. For Llama-3.1-8B a token
has 128 KiB of keys and values, so a GPU that computed 40,000 tokens per second would fill 5 GB/s of its bus. Two things
differ:

- Copied when published, host memory holds the newest pages, which the pool has as well: 64 GiB behind a pool of 90 GiB
  would never be hit. Copied when evicted, the tiers hold different pages, and their sizes add up.
- A page that is copied only when it is needed for something else makes a step wait for the bus.

Each page is therefore copied shortly before: while it is among the idle pages that the next two largest steps could
take. It is still in the index then, nothing writes to it, and by the time it is taken the copy is done. With
files, sequences worth it are copied when they are published as well, since a restart should find them.
"""
