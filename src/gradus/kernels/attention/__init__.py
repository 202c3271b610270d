"""Attention over the paged cache, and how its work is divided among programs.

launch.py          launch shapes per device and kind of step
work.py            the list of work that the programs of a step share
online_softmax.py  softmax of a row whose keys arrive in steps
paged.py           the kernel: queries of prompts and decodes over pages
splits.py          combine the parts of rows whose keys were split
new_token.py       rotate and store a decode's own heads inside attention
hopper.py          long prompts on Hopper, in Gluon;  widen.py: keys and values of 8 bits, widened for it
reference.py       the same in torch
"""
