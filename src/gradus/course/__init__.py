"""The course's tools: exercises checked by the reference's tests, and views of a phase. No torch here.

gradus.exercises defines exercises, and runs a student's file in place of ours. Read in this order:

    check.py        the phase's own tests against the student's file, and one sentence about a failure
    progress.py     the exercises that a student has passed, and the next one
    solved.py       a student's functions next to ours
    sentence.py     a text by p00's forward pass, next to the engine's
    printed.py      the output of the lessons' code;  scene.py: its three people, and the steps of a phase
    probe.py        an engine's state, for tests and drawings
    xray/           a run recorded through the probe, as a page to step through
    museum.py       the bug museum: a small engine with a real fault, the student's repaired copy, and its tests
    demos.py        a phase and the one before it on a small workload;  charts.py: their charts
    reading.py      the order in which a lesson reads its files
    difference.py   the changes of a phase
    flat.py         a phase as one file
    drawing.py      the visual style of all figures;  figures.py: every figure, and those of the first phases
    figures_forward.py                                                   p00: one forward pass
    figures_scene.py, figures_architecture.py                            the README; the page that follows a token
    figures_paging.py, figures_prefix.py, figures_budget.py              p04, p05, p06
    figures_quantization.py                                              p07
    figures_speculation.py                                               p08
    figures_kernels.py, figures_graphs.py, figures_timeline.py           p09, p10
"""
