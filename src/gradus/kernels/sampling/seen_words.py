"""The format of a slot's words, shared by the tables' writer and the kernels that read them.

Plain numbers, for machines without Triton too.
"""

# whether a slot adjusts logits
PENALIZED = 1  # by penalties, a bias or a ban
MASKED = 2  # by the mask of its grammar

# of a slot about a token
COUNT = (1 << 20) - 1  # these bits count the token's occurrences in the output
FULL = COUNT - (1 << 8)  # from here on a token is no longer counted: a step that verifies drafts may count it often
ENTRY_SHIFT = 20  # then the number of its entry in the slot's list of biases, from 1 on; 0: it has none
ENTRY = (1 << 11) - 1
IN_PROMPT = -1 << 31  # the sign
