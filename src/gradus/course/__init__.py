"""The course's tools: exercises cut out of the reference and checked by its tests, and views of a phase. No torch here.

Modules:

    exercise.py    what a phase asks the student to write
    skeleton.py    the reference with those functions' bodies cut out
    check.py       the phase's own tests against the student's file, and one sentence about what is wrong
    substitute.py  the student's file in a module's place
    reading.py     the order in which a lesson reads its files
    difference.py  what a phase changed
    flat.py        a phase as one file
    probe.py       what tests and drawings may know of an engine
    drawing.py, figures.py   the lessons' figures, drawn by code
"""

from gradus.course.exercise import Exercise as Exercise
