"""What a phase asks its student to write, and a student's functions in the place of ours. No torch here.

Read in this order:

    declaration.py   what a phase declares in a file of its own: the functions to write, and hints
    skeleton.py      the reference with those functions' bodies cut out
    substitute.py    imports of our module that get the student's file
    solution.py      a folder searched for a phase's functions, and the phase's engine built with them

Everything that runs a student's code goes through the last two: `gradus check`, and `--impl` of every other command.
"""

from gradus.exercises.declaration import Exercise as Exercise
