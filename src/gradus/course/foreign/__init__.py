"""Engines in other languages: a program that speaks docs/protocol.md, judged as a black box.

`gradus check p03 --command "./engine {port}"` starts the program, sends it requests, steps it, and compares what it
reports with what the phase promises. The tokens are the oracle's: the library's own model, recomputed for every token.
Read in this order:

    weights.py     the models that the judge writes: a tiny Llama in 32, 8 and 4 bits
    oracle.py      the right answers, from prompts whose answers are clear
    program.py     the program's process: started, asked, ended; every fault is one line
    report.py      what a step reports, read with care
    drive.py       one engine under test: what must hold in every step of every phase
    claims/        what each phase promises
    judge.py       the verdict on a program
    record.py      what programs have reached, for `gradus progress`
    published.py   the speedrun's model as a folder that such a program loads
    racing.py      a program as a contestant of the speedrun
"""
