"""Two series of points side by side: as text for a terminal, and as a figure in a file. No torch here."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from gradus import extras
from gradus.bench.record.plots import LOOK
from gradus.errors import ConfigError

Points = list[tuple[float, float]]

WIDTH, HEIGHT = 64, 12  # of the plot, in characters
BAR = 44
TALLEST_AREA = 6
BLOCKS = " ▁▂▃▄▅▆▇█"
MARKS = ("○", "●")  # the phase before, and the phase
COLORS = ("#E69F00", "#0072B2")
SUFFIXES = (".png", ".svg")


def plot(series: Mapping[str, Points], across: str, up: str) -> str:
    """Plot both series in one grid. Where they meet, the second one shows."""
    left, right, top = _bounds(series)
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for mark, points in zip(MARKS, series.values(), strict=True):
        for x, y in points:
            column = round((x - left) / (right - left) * (WIDTH - 1))
            grid[HEIGHT - 1 - round(y / top * (HEIGHT - 1))][column] = mark
    labels = {0: _short(top), HEIGHT - 1: "0"}
    legend = "   ".join(f"{mark} {name}" for mark, name in zip(MARKS, series, strict=True))
    lines = [f"{up}   {legend}"]
    lines += [f"{labels.get(row, ''):>7} │{''.join(cells).rstrip()}" for row, cells in enumerate(grid)]
    lines.append(f"{'':>7} └{'─' * WIDTH}")
    start, end = _short(left), f"{_short(right)}  {across}"
    lines.append(f"{'':>9}{start}{end:>{WIDTH - len(start)}}")
    return "\n".join(lines)


def areas(series: Mapping[str, Points], across: str, up: str) -> str:
    """Plot the height of each series, one below the other. A column shows the mean of neighboring places."""
    _, right, top = _bounds(series)
    height = min(TALLEST_AREA, math.ceil(top))
    lines = [up]
    for name, points in series.items():
        columns: list[list[float]] = [[] for _ in range(WIDTH)]
        for x, y in points:
            columns[min(WIDTH - 1, int(x / (right + 1) * WIDTH))].append(y)
        levels = [sum(column) / len(column) / top * height * 8 if column else 0.0 for column in columns]
        for row in range(height, 0, -1):
            filled = (round(min(8.0, max(0.0, level - 8 * (row - 1)))) for level in levels)
            label = _short(top) if row == height else ""
            lines.append(
                f"{name if row == height else '':>4}{label:>4} │{''.join(map(BLOCKS.__getitem__, filled)).rstrip()}"
            )
        lines.append(f"{'':>8} └{'─' * WIDTH}")
    lines.append(f"{'':>10}0{f'{_short(right)}  {across}':>{WIDTH - 1}}")
    return "\n".join(lines)


def bars(series: Mapping[str, Points], across: str, up: str) -> str:
    """Plot a bar for each point, with the bars of the same place below each other."""
    *_, top = _bounds(series)
    lines = [up]
    for number, pairs in enumerate(zip(*series.values(), strict=True)):
        for (name, points), (place, value) in zip(series.items(), pairs, strict=True):
            label = f"{across} {place:g}" if points is next(iter(series.values())) else ""
            lines.append(f"{label:>12} {name} {'█' * max(1, round(BAR * value / top))} {_short(value)}")
        assert len({place for place, _ in pairs}) == 1, f"series differ at point {number}"
    return "\n".join(lines)


TEXTS: dict[str, Callable[[Mapping[str, Points], str, str], str]] = {"plot": plot, "areas": areas, "bars": bars}


def check_drawable(file: Path) -> None:
    """Raise ConfigError for a kind of file that `draw` does not write, and where it could draw none."""
    extras.require("plots", "drawing a figure")
    if file.suffix not in SUFFIXES:
        raise ConfigError(f"{file}: the figure's name must end with {' or '.join(SUFFIXES)}")


def draw(file: Path, series: Mapping[str, Points], title: str, across: str, up: str, chart: str) -> None:
    """Write the figure in the format of its suffix, an SVG for light and dark pages. Raises ConfigError if it cannot be
    written."""
    import matplotlib

    with matplotlib.rc_context(LOOK):
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        for index, (name, points) in enumerate(series.items()):
            places, values = zip(*points, strict=True)
            if chart == "bars":
                aside = [place + (index - 0.5) * 0.4 for place in places]
                axes.bar(aside, values, 0.4, color=COLORS[index], label=name)
            elif chart == "areas":
                axes.step(places, values, where="post", color=COLORS[index], label=name)
                axes.yaxis.set_major_locator(MaxNLocator(integer=True))
            else:
                axes.plot(places, values, "os"[index], color=COLORS[index], label=name, markersize=5, alpha=0.8)
        axes.set(xlabel=across, ylabel=up)
        axes.set_title(title, loc="left", fontsize=13)
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside upper right", ncols=len(series))  # where no point is
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file, dpi=150, transparent=file.suffix == ".svg")
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from error


def _bounds(series: Mapping[str, Points]) -> tuple[float, float, float]:
    """The smallest and the largest x, which differ, and the largest y, which is not 0."""
    places = [x for points in series.values() for x, _ in points]
    values = [y for points in series.values() for _, y in points]
    left, right = min(places), max(places)
    return left, right if right > left else left + 1, max(values) or 1.0


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
