"""How keys and values are kept and read: everything that changes from phase to phase and the model never sees.

Read backend.py first (what the runner asks of a backend), then reference.py (attention in plain torch), storage.py and
paged.py (pages and block tables), decodes.py, gathered.py and sparse.py (decodes on any device), triton_paged.py and
graph_paged.py (kernels on a GPU). batch.py is one step as the device sees it.
"""
