"""Chat templates as programs that are not trusted: Jinja's sandbox, with a budget of work and of memory.

Jinja's sandbox keeps a template away from Python's internals, but not from two nested loops over 99,999 numbers, or a
text doubled thirty times. Here every construct that could take long or grow is paid for before it runs, from a budget
that grows with the conversation. Nothing depends on a clock or on a process of its own: the same template and the same
conversation always give the same result. Read in this order:

    budget.py       the budget of one rendering, and the weight of a value
    operations.py   operators, filters, tests and methods, each with its price
    metering.py     the template's syntax tree, with a payment in every block;  payments.py: what these call
    environment.py  the sandbox that puts them together
"""
