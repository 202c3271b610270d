"""The course's tools: exercises checked by the reference's tests, and views of a phase. No torch here.

What an exercise is, and how a student's file takes the place of ours, gradus.exercises says. Read in this order:

    check.py        the phase's own tests against the student's file, and one sentence about what is wrong
    progress.py     what a student has passed, and what comes next
    solved.py       a student's functions beside ours
    sentence.py     a text by p00's forward pass, beside the engine's
    printed.py      what the lessons' code prints;  scene.py: the three people in it, and the steps of a phase
    probe.py        what tests and drawings may know of an engine
    xray/           a run recorded through the probe, as a page to step through
    museum.py       the bug museum: a small engine with a real fault, the student's repaired copy, and its tests
    demos.py        a phase and the one before it on a small workload;  charts.py: what that looks like
    reading.py      the order in which a lesson reads its files
    difference.py   what a phase changed
    flat.py         a phase as one file
    drawing.py      the visual style of all figures;  figures.py: every figure, and those of the first phases
    figures_forward.py                                                   p00: one forward pass
    figures_scene.py, figures_architecture.py                            the README; the page that follows a token
    figures_paging.py, figures_prefix.py, figures_budget.py              p04, p05, p06
    figures_quantization.py                                              p07
    figures_speculation.py                                               p08
    figures_kernels.py, figures_graphs.py, figures_timeline.py           p09, p10
"""
