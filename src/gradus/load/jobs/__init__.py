"""The requests of a load and their times. Everything follows from a seed.

job.py         one request: when it is due, its prompt, the length of its answer
arrivals.py    when requests come: at random, in bursts, at a growing rate
lengths.py     how long prompts and answers are
mix.py         jobs drawn from lengths and shared beginnings
traces.py      jobs from a recorded trace
"""
