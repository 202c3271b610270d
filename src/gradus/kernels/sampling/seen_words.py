"""What a word says of a token in a slot: the tables' writer and the kernels that read them agree on it here.

Plain numbers, for machines without Triton too.
"""

COUNT = (1 << 20) - 1  # these bits count the token's occurrences in the output
FULL = COUNT - (1 << 8)  # from here on a token is no longer counted: a step that verifies drafts may count it often
ENTRY_SHIFT = 20  # then the number of its entry in the slot's list of biases, from 1 on; 0: it has none
ENTRY = (1 << 11) - 1
IN_PROMPT = -1 << 31  # the sign
