"""The loop and the words that its parts speak. No torch here.

Read in this order:

    request.py         what a caller asks for;  meaning.py: what each field of it means, in words
    structured.py      what an answer must be
    sequence.py        one sample on its way;  logprobs.py: log-probabilities, packed until they are read
    plan.py            spans, plans and results
    engine.py          the loop: schedule, run, commit
    core.py            what a front end asks of it
    outputs.py         what a step has done;  metrics.py: what all of them have, in totals
    shares.py          what each sequence has used of the device
    time_limits.py     which sequences are out of time;  sequence_heap.py: sequences by a key, the smallest first
    wire.py            plans as bytes
"""
