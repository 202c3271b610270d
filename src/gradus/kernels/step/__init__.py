"""How a step begins and ends on the device: tokens in, positions and pages, drafts, and which of them are accepted.

places.py           where keys and values are stored
verify.py           a step that verifies drafts: its rows, and which of them are accepted
decode_rows.py      a step without drafts
prompt_history.py   what a step with prompts leaves for drafts
ngram.py            drafts from the text;  ngram_reference.py in torch
draft_inputs.py     how a pass of draft heads begins
draft_passes.py     how a pass of a draft model begins
"""
