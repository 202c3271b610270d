"""`python -m gradus.course.figures`: draw every figure into its file."""

from gradus import phases
from gradus.course.figures.every import write_all
from gradus.exercises.declaration import repository

if __name__ == "__main__":
    write_all(repository(phases.highest()))
