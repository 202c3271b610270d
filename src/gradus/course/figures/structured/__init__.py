"""p11's figures: an automaton over bytes, the tokens and the probability that masks leave, and the two launches.

Read in this order:

    recorded.py    masked answers of a real model, as benchmarks/lessons/masks.py has kept them
    automaton.py   the states of a small expression
    masks.py       what masks leave, token by token
    launches.py    a mask before the model, and behind it
"""
