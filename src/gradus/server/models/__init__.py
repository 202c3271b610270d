"""Several models behind one port, each with a client, and an engine while it is loaded. Read in this order:

pool.py            which models are loaded, and which give way
registry.py        the models by name, and what they have in common
"""
