"""The lessons' one visual style, as SVG written by hand: cells, boxes, arrows and words.

It is legible on light and on dark pages (no background; words next to a shape are mid-grey, words inside contrast with
its fill), in grey (kinds differ in lightness or hatching, never only in hue), and at half size (no word is smaller
than 15 of 800 units). The colors are those of Okabe and Ito, which every kind of color vision can distinguish.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, MARGIN = 800, 6
GREY = "#747c84"
DARK = "#10202c"
SANS = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True, slots=True)
class Kind:
    """A cell's look, and the color of its word."""

    fill: str
    ink: str
    stroke: str
    hatched: bool = False
    dashed: bool = False


NEW = Kind("#0072B2", "#ffffff", "#0072B2")  # computed now
KEPT = Kind("#9fd3f2", DARK, "#56B4E9")  # computed before, and kept
WASTE = Kind("#f5cf86", DARK, "#E69F00", hatched=True)  # computed in vain
FREE = Kind("none", GREY, GREY, dashed=True)  # unused room
BOX = Kind("#e4eef5", DARK, "#56B4E9")


@dataclass(slots=True)
class Drawing:
    """One figure. title: describes it in a sentence, for readers who cannot see it. width, height: in units."""

    title: str
    height: int
    width: int = WIDTH
    shapes: list[str] = field(default_factory=list)

    def rectangle(self, x: float, y: float, width: float, height: float, kind: Kind, radius: float = 3) -> None:
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="{_n(radius)}"'
        dashes = ' stroke-dasharray="3 3"' if kind.dashed else ""
        self.shapes.append(f'<rect {place} fill="{kind.fill}" stroke="{kind.stroke}" stroke-width="1.5"{dashes}/>')
        if kind.hatched:
            self.shapes.append(f'<rect {place} fill="url(#hatch)"/>')

    def cell(self, x: float, y: float, width: float, height: float, kind: Kind, word: str = "") -> None:
        """Draw a rectangle with one word in its middle."""
        self.rectangle(x, y, width, height, kind)
        if word:
            self.words(x + width / 2, y + height / 2 + 5.5, word, size=16, color=kind.ink, anchor="middle", mono=True)

    def words(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 17,
        color: str = GREY,
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        """Write one line. y: its baseline."""
        assert size >= 15, "smaller words are lost at half size"
        style = f'font-family="{MONO if mono else SANS}" font-size="{_n(size)}" text-anchor="{anchor}"'
        weight = ' font-weight="600"' if bold else ""
        self.shapes.append(f'<text x="{_n(x)}" y="{_n(y)}" {style} fill="{color}"{weight}>{escape(text)}</text>')

    def arrow(self, *points: tuple[float, float], head: bool = True, dashed: bool = False, color: str = GREY) -> None:
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        style = ' stroke-dasharray="5 4"' if dashed else ""
        end = ' marker-end="url(#head)"' if head else ""
        self.shapes.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{style}{end}/>')

    def bracket(self, left: float, right: float, y: float, text: str) -> None:
        """Draw a bracket below something, with its name in the middle."""
        self.arrow((left, y - 6), (left, y), (right, y), (right, y - 6), head=False)
        self.words((left + right) / 2, y + 21, text, anchor="middle")

    def legend(self, y: float, entries: Sequence[tuple[Kind, str]], x: float = 0) -> None:
        for kind, text in entries:
            self.rectangle(x + 1, y - 14, 22, 17, kind)
            self.words(x + 31, y, text)
            x += 31 + 9 * len(text) + 28

    def svg(self) -> str:
        width, height = self.width + 2 * MARGIN, self.height + 2 * MARGIN
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-MARGIN} {-MARGIN} {width} {height}" '
                f'width="{width}" height="{height}" role="img">',
                f"<title>{escape(self.title)}</title>",
                "<defs>",
                '<pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
                '<path d="M0,0 V7" stroke="#9a6a00" stroke-width="1.6" stroke-opacity="0.55"/></pattern>',
                '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
                f'<path d="M0,0 L8,4 L0,8 z" fill="{GREY}"/></marker>',
                "</defs>",
                *self.shapes,
                "</svg>\n",
            ]
        )


Place = Callable[[float, float], tuple[float, float]]
"""(x value, y value) → the point's place in the drawing."""


def axes(
    drawing: Drawing, place: Place, across: list[tuple[float, str]], up: list[tuple[float, str]], name: str
) -> None:
    """Draw two axes with their ticks, each a value and its word. name: written at the end of the horizontal axis."""
    (left, bottom), (right, top) = place(across[0][0], up[0][0]), place(across[-1][0], up[-1][0])
    drawing.arrow((left, top - 8), (left, bottom), (right, bottom), head=False)
    for value, word in across:
        x, _ = place(value, up[0][0])
        drawing.arrow((x, bottom), (x, bottom + 6), head=False)
        drawing.words(x, bottom + 24, word, size=15, anchor="middle")
    for value, word in up:
        _, y = place(across[0][0], value)
        drawing.arrow((left - 6, y), (left, y), head=False)
        drawing.words(left - 10, y + 5, word, size=15, anchor="end")
    drawing.words(right, bottom + 48, name, anchor="end")


def _n(value: float) -> str:
    """Format a number briefly, and equally on every machine."""
    return f"{value:.1f}".removesuffix(".0")
