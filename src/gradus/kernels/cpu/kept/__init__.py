"""Compiled code, kept on disk: a quarter of a minute of compiling is spent once per machine. Read in this order:

code.py    what is kept, under which key, and when it is not trusted
folder.py  which folders other users could put code into
turn.py    one process compiles, and the others wait for it
shown.py   how far a compilation is, for a person who waits
watch.py   how that is counted
"""
