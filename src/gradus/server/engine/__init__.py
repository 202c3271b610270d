"""The engine's side of the server. Read in this order:

messages.py        messages between the two sides: commands, reports, failures
loop.py            the loop that owns the engine: take commands, step, report
thread.py          that loop on a thread
loading.py         a configuration → a tokenizer and an engine
"""
