"""The bug museum: eleven faults of real serving engines, each in an engine small enough to read in one sitting.

A folder per exhibit:

    engine.py   the engine, with its fault: its docstring ends with the symptom, and `show` prints it
    test.py     what must hold: fails on the engine as it is
    fixed.py    the functions that repair it, as a subclass
    label.py    the fault's name, hints, story, sources and moral

`gradus museum` lists the exhibits, and gradus.course.museum runs them.
"""
