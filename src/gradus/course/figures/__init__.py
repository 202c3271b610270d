"""The figures of the lessons, of the README and of docs/architecture.md, drawn from the engines and numbers they show.

Read in this order:

    first.py                               p00 to p03: what each step computes
    forward.py                             p00: one forward pass
    scene.py, architecture.py              the README; the page that follows a token
    paging.py, prefix.py, budget.py        p04, p05, p06
    quantization.py, speculation.py        p07, p08
    kernels.py, graphs.py, timeline.py     p09, p10
    structured/                            p11
    parallel/                              p12
    serving/                               p13
    experts/                               p14
    every.py                               all of them, by file
    __main__.py                            `python -m gradus.course.figures` draws them
"""
