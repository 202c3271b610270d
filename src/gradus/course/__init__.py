"""The course's tools: exercises cut out of the reference and checked by its tests, and views of a phase. No torch here.

Read in this order:

    exercise.py     what a phase asks the student to write
    skeleton.py     the reference with those functions' bodies cut out
    check.py        the phase's own tests against the student's file, and one sentence about what is wrong
    substitute.py   the student's file in a module's place
    probe.py        what tests and drawings may know of an engine
    xray/           a run recorded through the probe, as a page to step through
    reading.py      the order in which a lesson reads its files
    difference.py   what a phase changed
    flat.py         a phase as one file
    drawing.py      the visual style of all figures;  figures.py: every figure, and those of the first phases
    figures_forward.py                                                   p00: one forward pass
    figures_architecture.py                                              the page that follows a token
    figures_paging.py, figures_prefix.py, figures_budget.py              p04, p05, p06
    figures_quantization.py                                              p07
    figures_speculation.py                                               p08
    figures_kernels.py, figures_graphs.py, figures_timeline.py           p09, p10
"""

from gradus.course.exercise import Exercise as Exercise
