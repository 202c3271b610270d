"""The course's tools: exercises checked by the reference's tests, views of a phase, and figures. No torch here,
except where open tasks are measured.

`gradus.exercises` says what an exercise is, and how a student's file takes the place of ours. Read in this order:

    probe.py       what tests and drawings may know of an engine
    scene.py       the lessons' three people, and the steps of a phase
    printed.py     the output of the lessons' code, kept up to date
    handout.py     a copy of the course for a class, without our functions
    student/       a student's work: checked, counted, next to ours
    notebook/      lessons as notebooks, built from their pages, and the check of what their cells define
    foreign/       engines in other languages, judged as black boxes
    sentence.py    a text by p00's forward pass, next to the engine's
    museum.py      the bug museum: a small engine with a real fault, the student's repaired copy, and its tests
    open/          open tasks: measured, and without a solution
    xray/          a run recorded through the probe, as a page to step through
    views/         a phase's reading order, its changes, its code in one file, its demo
    drawing.py     the visual style of all figures
    figures/       every figure
"""
