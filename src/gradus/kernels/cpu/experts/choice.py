"""The choice of each row's experts, and the rows of each expert.

A router's logits become scores, and each row takes the experts with the best. Rows are then grouped by expert, so that
an expert's weights are read once for all the rows that chose it. A choice of a row has a place: those of one expert lie
side by side. Experts with many rows come first, because threads take groups as they become free, and wait for the last.

One thread does this for a step: 128 rows that choose 8 of 128 experts take a tenth of a millisecond, their products
take a hundred times as long.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gradus.kernels.cpu.activations import MOST_ROWS
from gradus.kernels.cpu.elementary import exp
from gradus.kernels.cpu.machine import FLAGS, floats, zeros

f32 = np.float32
TINY = f32(np.finfo(np.float32).tiny)

MIXTURE = np.dtype(
    [
        ("count", np.int64),  # of experts; 0: the layer has none
        ("chosen", np.int64),  # per row
        ("width", np.int64),  # features of one
        ("sigmoid", np.int64),
        ("normalized", np.int64),
        ("scale", np.float32),
        ("groups", np.int64),
        ("chosen_groups", np.int64),
        ("correction", np.int64),  # addresses of float32 [count], 0 for none: added to scores for the choice alone
        ("factors", np.int64),  # of the weights
        ("fewest", np.int64),  # chunks of a stage
        ("adds", np.int64),  # whether the dense MLP's result waits in `Step.added`
        ("out_norm", np.int64),  # addresses of float32 [D], 0 for none: of the experts' sum
        ("dense_norm", np.int64),  # of the dense MLP's result
        ("sum_norm", np.int64),  # of both together
        ("eps", np.float32),
    ]
)
"""A layer's mixture. See `gradus.models.config.Experts`."""

EXPERT, FIRST, COUNT = range(3)
"""A group: its expert, its first place, and its number of rows, at most MOST_ROWS."""

GROUPS, UP_COLUMNS, DOWN_COLUMNS = range(3)
"""How a layer's work is divided: the number of groups, and the columns of a chunk of each product."""


class Room(NamedTuple):
    """Memory that a layer's experts work in. M rows, E experts of F features, k chosen: each the most of all layers.

    logits: float32 [MOST_ROWS, E + 1], the router's, then scores; behind a layer's last expert, its shared gate's.
    ranked, barred: [E], a row's scores as they are compared, and the experts that it cannot choose any more.
    choices: int64 [M, k], ascending; weights: float32 [M, k]; places: int64 [M, k].
    owners: int64 [M k], each place's row; shares: float32 [M k], its weight.
    counts, starts: int64 [E], places of each expert, and its next one; groups: int64 [G, 3]; division: int64 [3].
    given: float32 [M, D], rows of a prompt, and then the sums of their experts.
    features: float32 [M k, F]; mixed: float32 [M k, D], the weighted result of each choice.
    """

    logits: NDArray[np.float32]
    ranked: NDArray[np.float32]
    barred: NDArray[np.int64]
    choices: NDArray[np.int64]
    weights: NDArray[np.float32]
    places: NDArray[np.int64]
    owners: NDArray[np.int64]
    shares: NDArray[np.float32]
    counts: NDArray[np.int64]
    starts: NDArray[np.int64]
    groups: NDArray[np.int64]
    division: NDArray[np.int64]
    given: NDArray[np.float32]
    features: NDArray[np.float32]
    mixed: NDArray[np.float32]


def make_room(mixtures: NDArray[np.void], hidden: int, rows: int) -> Room:
    """Allocate the room of all layers' mixtures, for `rows` rows at once. What no step writes takes no memory."""
    experts, chosen, width = (max(0, *mixtures[name], 0) for name in ("count", "chosen", "width"))
    rows = rows if experts else 0
    places = rows * chosen
    return Room(
        zeros((MOST_ROWS if experts else 0, experts + 1), f32), np.zeros(experts, f32), np.zeros(experts, np.int64),
        np.zeros((rows, chosen), np.int64), np.zeros((rows, chosen), f32), np.zeros((rows, chosen), np.int64),
        np.zeros(places, np.int64), np.zeros(places, f32),
        np.zeros(experts, np.int64), np.zeros(experts, np.int64),
        np.zeros((experts + places // MOST_ROWS, 3), np.int64), np.zeros(3, np.int64),
        zeros((rows, hidden), f32), zeros((places, width), f32), zeros((places, hidden), f32),
    )  # fmt: skip


# -- a row's choice ----------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def choose(mixture: Any, room: Room, rows: int) -> None:
    """Choose the experts of each of `rows` rows from its logits, with their weights."""
    for r in range(rows):
        scores = room.logits[r]
        finite = _score(mixture, scores)
        _rank(mixture, scores, room)
        for taken in range(mixture.chosen):
            expert = _best(room.ranked, room.barred, 0, mixture.count)
            room.barred[expert] = 1
            while taken > 0 and room.choices[r, taken - 1] > expert:
                room.choices[r, taken] = room.choices[r, taken - 1]
                taken -= 1
            room.choices[r, taken] = expert
        _weigh(mixture, scores, room.choices[r], room.weights[r], finite)


@njit(**FLAGS)
def _score(mixture: Any, logits: Any) -> bool:
    """Turn logits into scores, in place. Returns whether all were finite."""
    finite, largest = True, logits[0]
    for e in range(mixture.count):
        finite &= abs(logits[e]) < f32(np.inf)
        largest = max(largest, logits[e])
    if mixture.sigmoid:
        for e in range(mixture.count):
            logits[e] = f32(1) / (f32(1) + exp(-logits[e]))
        return finite
    total = f32(0)
    for e in range(mixture.count):
        logits[e] = exp(logits[e] - largest)
        total += logits[e]
    for e in range(mixture.count):
        logits[e] /= total
    return finite


@njit(**FLAGS)
def _rank(mixture: Any, scores: Any, room: Room) -> None:
    """Rank a row's experts, and bar those outside of the best groups. A group's score is the sum of its two best."""
    correction = floats(mixture.correction, (mixture.count,))
    for e in range(mixture.count):
        room.ranked[e] = scores[e] + correction[e] if mixture.correction else scores[e]
        room.barred[e] = mixture.groups > 1
    if mixture.groups == 1:
        return
    size = mixture.count // mixture.groups
    for _ in range(mixture.chosen_groups):
        best, highest = -1, f32(0)
        for group in range(mixture.groups):
            if room.barred[group * size]:
                score = _two_best(room.ranked, group * size, size)
                if best < 0 or score > highest:
                    best, highest = group, score
        for e in range(best * size, (best + 1) * size):
            room.barred[e] = 0


@njit(**FLAGS)
def _two_best(ranked: Any, first: int, size: int) -> Any:
    best, second = ranked[first], f32(-np.inf)
    for e in range(first + 1, first + size):
        if ranked[e] > best:
            best, second = ranked[e], best
        elif ranked[e] > second:
            second = ranked[e]
    return best + second if size > 1 else best


@njit(**FLAGS)
def _best(ranked: Any, barred: Any, first: int, end: int) -> int:
    """The first of the best; of a row that is not finite, any that is not barred."""
    best = -1
    for e in range(first, end):
        if not barred[e] and (best < 0 or ranked[e] > ranked[best]):
            best = e
    return best


@njit(**FLAGS)
def _weigh(mixture: Any, scores: Any, choices: Any, weights: Any, finite: bool) -> None:
    """Set the weights of a row's choices: NaN if its logits are not finite, so the row stays so."""
    total = f32(0)
    for j in range(mixture.chosen):
        total += scores[choices[j]]
    by = mixture.scale / max(total, TINY) if mixture.normalized else mixture.scale
    factors = floats(mixture.factors, (mixture.count,))
    for j in range(mixture.chosen):
        weights[j] = scores[choices[j]] * by if finite else f32(np.nan)
        if mixture.factors:
            weights[j] *= factors[choices[j]]


# -- rows by expert ----------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def group(mixture: Any, room: Room, rows: int) -> None:
    """Give each choice of `rows` rows its place, and divide places into groups, those with the most rows first."""
    for e in range(mixture.count):
        room.counts[e] = 0
    for r in range(rows):
        for j in range(mixture.chosen):
            room.counts[room.choices[r, j]] += 1
    place = groups = 0
    for e in range(mixture.count):
        room.starts[e] = place
        end = place + room.counts[e]
        while place < end:
            some = min(end - place, MOST_ROWS)
            _insert(room.groups, groups, e, place, some)
            place += some
            groups += 1
    room.division[GROUPS] = groups
    for r in range(rows):
        for j in range(mixture.chosen):
            expert = room.choices[r, j]
            place = room.starts[expert]
            room.starts[expert] = place + 1
            room.owners[place], room.places[r, j], room.shares[place] = r, place, room.weights[r, j]


@njit(**FLAGS)
def _insert(groups: Any, number: int, expert: int, place: int, count: int) -> None:
    """Put a group behind those of `number` that have as many rows or more."""
    while number > 0 and groups[number - 1, COUNT] < count:
        for field in range(3):
            groups[number, field] = groups[number - 1, field]
        number -= 1
    groups[number, EXPERT], groups[number, FIRST], groups[number, COUNT] = expert, place, count


@njit(**FLAGS)
def columns_of(width: int, most: int, groups: int, fewest: int) -> int:
    """Columns of a chunk, a multiple of 16: at most about `most`, and few enough for `fewest` chunks of all groups."""
    pieces = max(-(-width // most), -(-fewest // groups))
    return -(-width // (pieces * 16)) * 16
