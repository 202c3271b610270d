"""The engine's side of the server. Read in this order:

messages.py        messages between the two sides: commands, reports, failures
compiling.py       new constraints, compiled before their requests enter the engine
steps.py           records the steps of a watched engine
watching.py        looks at its pages, batch, queue and prefix tree
loop.py            the loop that owns the engine: take commands, step, report
thread.py          that loop on a thread, for the phases of the course
wire.py            messages as bytes, and the private socket that carries them
process.py         that loop in a process of its own, for the final engine
child.py           the process as the front end sees it: from its start to its end
link.py            the common interface of thread and process, and the choice between them
pool.py            which of several models' engines are loaded, by turns
loading.py         a configuration → a tokenizer and an engine
"""
