"""A pair of products on two ranks: the first matrix is cut by outputs, the second by inputs, and one sum joins them."""

from gradus.course.drawing import BOX, KEPT, NEW, Drawing, Kind

RANKS: tuple[tuple[str, Kind], ...] = (("rank 0", NEW), ("rank 1", KEPT))
ROW = 146
X, FIRST, MIDDLE, SECOND, SUMMAND, SUM = 76, 186, 342, 462, 596, 726  # left edges


def cuts() -> Drawing:
    drawing = Drawing(
        "On each of two ranks the whole row of the residual stream meets half of the first matrix's outputs; the half "
        "of the features that results meets the half of the second matrix's inputs; the two results are summands",
        356,
    )
    names = {X: "row", FIRST: "by outputs", MIDDLE: "features", SECOND: "by inputs", SUMMAND: "summand", SUM: "sum"}
    for x, name in names.items():
        drawing.words(x, 20, name, bold=True)
    for number, (name, kind) in enumerate(RANKS):
        _rank(drawing, 40 + ROW * number, name, kind, number)
    middle = 40 + ROW - 26
    drawing.rectangle(SUM, middle - 9, 60, 18, BOX)
    for number in range(2):
        drawing.arrow((SUMMAND + 70, 40 + ROW * number + 49), (SUM - 6, middle + (4 if number else -4)))
    drawing.legend(328, [(NEW, "on rank 0"), (KEPT, "on rank 1"), (BOX, "the same on both")])
    drawing.words(0, 354, "A matrix is drawn as [in, out]. Dashed is what the other rank has.")
    return drawing


def _rank(drawing: Drawing, y: float, name: str, kind: Kind, number: int) -> None:
    other = Kind("none", kind.ink, "#747c84", dashed=True)
    middle = y + 49
    drawing.words(0, middle + 6, name, bold=True)
    drawing.rectangle(X, middle - 9, 60, 18, BOX)
    drawing.words(X + 84, middle + 7, "×", size=20, anchor="middle")
    for half in range(2):
        drawing.rectangle(FIRST + 56 * half, middle - 30, 54, 60, kind if half == number else other)
        drawing.rectangle(MIDDLE + 40 * half, middle - 9, 38, 18, kind if half == number else other)
        drawing.rectangle(SECOND, middle - 47 + 48 * half, 60, 46, kind if half == number else other)
    drawing.words(FIRST + 132, middle + 7, "=", size=20, anchor="middle")
    drawing.words(MIDDLE + 95, middle + 7, "×", size=20, anchor="middle")
    drawing.words(SECOND + 84, middle + 7, "=", size=20, anchor="middle")
    drawing.rectangle(SUMMAND, middle - 9, 60, 18, kind)
