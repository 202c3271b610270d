"""Figures in one style, from numbers alone: SVG that reads on light and on dark pages, in grey, and at half size.

The background is transparent and the text mid-grey. The colors are Okabe and Ito's, distinguishable with any color
vision; markers and dashes distinguish lines without color. An SVG carries a digest of its content, so a stale figure is
found without drawing it again, whichever release of matplotlib drew it.
"""

import hashlib
import io
import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus import extras
from gradus.bench.statistics import median

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

STYLE = 5  # incremented when the drawing changes, which makes every figure stale
GREY = "#747c84"
COLORS = ("#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#0072B2", "#999999", "#B8A800")
MARKERS = "osD^vP*X"
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), "-", "--")
PANEL = "#0072B2"
MARK = "gradus-figure:"
LOOK: Any = {
    "svg.hashsalt": "gradus",
    "svg.fonttype": "none",  # text stays text: small files, and the reader's own font
    "font.family": "sans-serif",
    "font.size": 13,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 2.4,
    "lines.markersize": 7,
}
"""Settings of matplotlib that all figures share."""


@dataclass(frozen=True, slots=True)
class Series:
    """One contender's points. floor: the prediction for each point, or None."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    floor: Sequence[float | None] = ()

    @classmethod
    def of(cls, name: str, points: Iterable[tuple[float, Sequence[float]]]) -> "Series":
        """Make a series of each x with its repeats: their median, smallest and largest."""
        found = [(x, median(values), min(values), max(values)) for x, values in points if values]
        return cls(name, *([point[column] for point in found] for column in range(4)))


@dataclass(frozen=True, slots=True)
class Picture:
    """kind: "lines" over an axis; "levels", one value per series; "dots", rows of names with a dot for each series; or
    "panels", rows of names with a panel for each series, side by side. labels: the text at each row's x (dots
    and panels draw rows from the top down, values to the right).

    scale: "log" or "linear" for both axes; "names" for rows that are not numbers, evenly spaced, with values on a log
    axis.
    """

    kind: str
    title: str
    subtitle: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    labels: tuple[tuple[float, str], ...] = ()
    scale: str = "linear"

    def digest(self) -> str:
        shown = json.dumps([STYLE, asdict(self)], sort_keys=True)
        return hashlib.sha256(shown.encode()).hexdigest()[:32]


def is_current(file: Path, picture: Picture) -> bool:
    """Whether the file shows exactly this picture."""
    if not file.exists():
        return False
    found = re.search(MARK + r"([0-9a-f]+)", file.read_text(encoding="utf-8"))
    return found is not None and found[1] == picture.digest()


def draw(picture: Picture) -> str:
    """The picture as SVG text; the same picture gives the same text. Raises ConfigError without the extra `plots`."""
    extras.require("plots", "drawing figures")
    import matplotlib

    with matplotlib.rc_context(LOOK):
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        listed = {"levels": len(picture.series), "dots": len(picture.labels), "panels": len(picture.labels)}
        rows = listed.get(picture.kind)
        figure = Figure(figsize=(8, 4.8 if rows is None else 1.5 + 0.5 * rows), layout="constrained")
        FigureCanvasSVG(figure)
        figure.suptitle(f"{picture.title}\n{picture.subtitle}", x=0.01, ha="left", fontsize=13)
        if picture.kind == "panels":
            _draw_panels(figure, picture)
        else:
            draw_on = {"levels": _draw_levels, "dots": _draw_dots, "lines": _draw_lines}[picture.kind]
            draw_on(figure.add_subplot(), picture)
        return _svg(figure, picture)


def _svg(figure: "Figure", picture: Picture) -> str:
    out = io.StringIO()
    metadata = {"Date": None, "Creator": None, "Title": picture.title, "Identifier": MARK + picture.digest()}
    figure.savefig(out, format="svg", transparent=True, metadata=metadata)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _draw_lines(axes: "Axes", picture: Picture) -> None:
    named = picture.scale == "names"
    for index, series in enumerate(picture.series):
        color = COLORS[index % len(COLORS)]
        # rows that are names have no order to draw a line along: points side by side
        aside = 0.14 * (index - (len(picture.series) - 1) / 2) if named else 0.0
        errors = [
            [y - low for y, low in zip(series.y, series.low, strict=True)],
            [high - y for y, high in zip(series.y, series.high, strict=True)],
        ]
        axes.errorbar(
            [x + aside for x in series.x], series.y, yerr=errors, color=color, capsize=3, label=series.name,
            marker=MARKERS[index % len(MARKERS)], linestyle="" if named else DASHES[index % len(DASHES)],
        )  # fmt: skip
        points = [(x, y) for x, y in zip(series.x, series.floor, strict=False) if y is not None]
        if points and picture.scale == "log":  # on a linear axis a far floor would press everything else flat
            axes.plot(*zip(*points, strict=True), color=color, linewidth=1.4, linestyle=":", marker="_")
    if picture.scale == "log":
        axes.set_xscale("log")
        axes.set_yscale("log")
    elif named:
        axes.set_yscale("log")
        axes.set_xlim(-0.5, len(picture.labels) - 0.5)
    else:
        axes.set_ylim(bottom=0)
    measured = {x for series in picture.series for x in series.x}
    marked = [
        (x, textwrap.fill(label, 14) if named else label) for x, label in picture.labels if x in measured or named
    ]
    axes.set_xticks([x for x, _ in marked], [label for _, label in marked])
    axes.minorticks_off()
    _label_within_decades(axes.yaxis)
    axes.yaxis.set_major_formatter(_plain)
    axes.set_xlabel(picture.x_label)
    axes.set_ylabel(picture.y_label)
    if named:
        axes.legend(fontsize=12, loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        _name_lines(axes, picture)


LABEL = 0.07  # the height of a line's name, of the axes' height


def _name_lines(axes: "Axes", picture: Picture) -> None:
    """Write each line's name next to its end, in its color, and move names apart that would touch."""
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = [to_axes.transform((series.x[-1], series.y[-1]))[1] for series in picture.series]
    for place, index in zip(
        spread_out(sorted(ends), LABEL), sorted(range(len(ends)), key=ends.__getitem__), strict=True
    ):
        axes.text(
            1.01, place, textwrap.fill(picture.series[index].name, 26), transform=axes.transAxes, va="center",
            fontsize=12, color=COLORS[index % len(COLORS)],
        )  # fmt: skip


def spread_out(places: Sequence[float], least: float) -> list[float]:
    """Ascending places at least `least` apart, moved by one pass up and one pass down."""
    moved = list(places)
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + least)
    if moved:
        moved[-1] = min(moved[-1], max(1.0, places[-1]))
    for i in reversed(range(len(moved) - 1)):
        moved[i] = min(moved[i], moved[i + 1] - least)
    return moved


def _draw_levels(axes: "Axes", picture: Picture) -> None:
    """Draw one mark per series, the first on top, with its value. On a log axis a thin line leads to its floor."""
    for place, series in enumerate(picture.series):
        value, color = series.y[0], COLORS[place % len(COLORS)]
        floor = series.floor[0] if series.floor else None
        if picture.scale == "linear":
            axes.barh(place, value, height=0.6, color=color)
        elif floor is not None:
            axes.plot([value, floor], [place, place], color=GREY, linewidth=1)
            axes.plot([floor, floor], [place - 0.25, place + 0.25], color=GREY, linewidth=2.5)
        axes.plot([series.low[0], series.high[0]], [place, place], color=color, linewidth=4)
        axes.plot(value, place, color=color, marker=MARKERS[place % len(MARKERS)], markersize=11)
        axes.annotate(
            _plain(value, 0), (value, place), xytext=(0, 9), textcoords="offset points", ha="center", fontsize=11
        )
    axes.set_yticks(range(len(picture.series)), [series.name for series in picture.series])
    axes.set_ylim(len(picture.series) - 0.4, -0.7)  # the first on top
    axes.grid(visible=False, axis="y")
    if picture.scale == "log":
        axes.set_xscale("log")
    axes.minorticks_off()
    _label_within_decades(axes.xaxis)
    axes.xaxis.set_major_formatter(_plain)
    axes.set_xlabel(picture.x_label)


def _draw_panels(figure: "Figure", picture: Picture) -> None:
    """Draw one metric per panel, one row per name: a dot and its value. (On a log axis, bar length has no meaning.)"""
    panels = figure.subplots(1, len(picture.series), sharey=True)
    for axes, series in zip(panels, picture.series, strict=True):
        least = min((value for value in series.low if value > 0), default=1.0)
        start = least / 2  # a log axis has no zero
        for place, value, low, high in zip(series.x, series.y, series.low, series.high, strict=True):
            axes.plot([start, value], [place, place], color=GREY, linewidth=1)
            axes.plot([low, high], [place, place], color=PANEL, linewidth=4)
            axes.plot(value, place, color=PANEL, marker="o", markersize=9)
            axes.annotate(_plain(value, 0), (max(value, high), place), xytext=(8, 0), textcoords="offset points",
                          va="center", fontsize=10)  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlim(start, 4 * max(series.high, default=1.0))  # room for the longest bar's value
        axes.set_title(series.name.replace(" (", "\n("), fontsize=11, color=GREY)
        axes.grid(visible=False, axis="y")
        axes.minorticks_off()
        axes.tick_params(axis="x", labelsize=10)
        if max(series.high, default=1.0) < 30 * least:  # else there is no room, and each dot has its value
            _label_within_decades(axes.xaxis)
        axes.xaxis.set_major_formatter(_plain)
    panels[0].set_yticks([place for place, _ in picture.labels], [label for _, label in picture.labels], fontsize=11)
    panels[0].set_ylim(len(picture.labels) - 0.4, -0.6)  # the first on top


def _draw_dots(axes: "Axes", picture: Picture) -> None:
    """Draw each row's series one below the other, so that none hides another."""
    for index, series in enumerate(picture.series):
        aside = 0.2 * (index - (len(picture.series) - 1) / 2)
        places = [place + aside for place in series.x]
        axes.hlines(places, series.low, series.high, color=COLORS[index], linewidth=2)
        axes.plot(series.y, places, color=COLORS[index], marker=MARKERS[index], linestyle="", label=series.name)
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set_yticks([place for place, _ in picture.labels], [label for _, label in picture.labels])
    axes.set_ylim(len(picture.labels) - 0.4, -0.6)  # the first on top
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(picture.x_label)
    axes.legend(fontsize=12, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _label_within_decades(axis: "Axis") -> None:
    """Label ticks between powers of ten if a log axis has few of them: one or two labels show no scale."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    low, high = axis.get_view_interval()
    if axis.get_scale() != "log":
        return
    if high < 4 * low:  # nearly linear: even steps
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    elif high < 3000 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0, 3.0)))


def _plain(value: float, _: object) -> str:
    """Format a tick as 1,000 or 0.5, never 10^3."""
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.3g}"
