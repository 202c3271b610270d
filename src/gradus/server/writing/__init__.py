"""Writing a step's tokens to hundreds of connections: the system calls take another core than Python's work.

A system call that sends a token on a connection costs as much as all other work on the token. On a busy server, the
front end hands a whole step to a second process in one message, and goes on with the next. Read in this order:

    process.py    the other process: it sends bytes on connections that it was given, and knows nothing else
    outbox.py     the front end's side: what goes that way, and in which order with everything else
"""
