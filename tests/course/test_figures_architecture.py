"""The figure and the page that follow a token name the same stops, in rooms and files that exist."""

import re

from gradus.course.figures.architecture import STOPS
from tests.course.conftest import ROOT

SOURCE = ROOT / "src" / "gradus"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_rooms_of_the_figure_are_packages():
    assert all((SOURCE / room / "__init__.py").is_file() for _, room, *_ in STOPS)


def test_the_page_has_the_figures_stops_in_their_order_and_rooms():
    stops = re.findall(r"^(\d+)\. \*\*(\w+)\*\* \(`(\w+/)", PAGE, flags=re.MULTILINE)
    figure = {name: room for name, room, *_ in STOPS if name[0].isdigit()}
    assert [int(number) for number, *_ in stops] == list(range(1, len(figure) + 1))
    assert {f"{number} {name.lower()}": room for number, name, room in stops} == figure


def test_every_file_that_the_page_names_exists():
    files = re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE)
    there = [name for name in files if (SOURCE / name).is_file() or (ROOT / name).is_file()]
    assert len(files) >= 15 and there == files
