"""Lessons as notebooks: the reader writes the exercise in cells, runs it there, and has it checked there.

    python -m gradus.course.notebook.build    # rewrite the notebooks whose pages have changed

Read in this order:

    setup.py    the first cell: find or clone the course, and install what it needs
    inside.py   what the other cells call: figures, commands, and the check of what the reader's cells define
    pages.py    a lesson's page, and the marks in it, as cells
    build.py    cells as files, which are the same for the same pages

No torch here.
"""
