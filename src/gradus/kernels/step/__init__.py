"""Kernels that begin and end a step on the device: tokens, positions, pages, drafts, and accepted tokens.

rows.py             the records of a step's rows, and the operations that make and end them
plain.py            those operations in numpy: a CPU's step, and the reference of the kernels
table_entries.py    pages entered, written to block tables
places.py           where keys and values are stored
verify.py           the rows of a step that verifies drafts, and its accepted tokens
decode_rows.py      the rows of a step without drafts
send_tokens.py      a step's tokens, sent to the host
prompt_history.py   the tokens of a step with prompts, written to the history
launches.py         these kernels as a step's operations
ngram.py            drafts looked up in the text;  ngram_reference.py in torch
draft_inputs.py     the inputs of a pass of draft heads
draft_passes.py     the rows of a draft model's pass
draft_reference.py  the last two in torch
"""
