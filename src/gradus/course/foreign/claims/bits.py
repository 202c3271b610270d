"""p07: weights in fewer bits. The folder has codes and grids alone; the oracle runs the weights that they mean."""

from gradus.course.foreign.drive import Bench


def tokens_of_int8_weights_are_those_of_the_weights_that_they_mean(bench: Bench) -> None:
    answered(bench, 8)


def tokens_of_int4_weights_are_those_of_the_weights_that_they_mean(bench: Bench) -> None:
    answered(bench, 4)


def answered(bench: Bench, bits: int) -> None:
    drive = bench.drive(sequences=2, bits=bits)
    drive.run(*(drive.oracle.ask(length, 6) for length in (1, 9, 30)))


P07 = (
    tokens_of_int8_weights_are_those_of_the_weights_that_they_mean,
    tokens_of_int4_weights_are_those_of_the_weights_that_they_mean,
)
