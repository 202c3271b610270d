"""Exercises: the functions that a student writes, and running a student's functions in place of ours. No torch here.

Read in this order:

    declaration.py   a phase's declaration of its exercise: the functions to write, and hints
    skeleton.py      the reference with those functions' bodies cut out
    substitute.py    imports of our module that load the student's file instead
    solution.py      find a phase's functions in a folder, and build the phase's engine with them

Everything that runs a student's code goes through the last two: `gradus check`, and `--impl` of every other command.
"""

from gradus.exercises.declaration import Exercise as Exercise
