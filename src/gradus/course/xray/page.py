"""Recordings as one HTML page that needs nothing else: no network, no server, no other file.

The recordings are in it as JSON. The page forbids itself every connection, so what it shows is all there is. No torch
here.
"""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from gradus.course.xray.words import count
from gradus.server.xray import view

LANES = "lanes"  # the form of recordings whose frames are times on lanes: see gradus.course.xray.lanes


def page(recordings: Sequence[dict[str, Any]], code: str = "{path}#L{line}") -> str:
    """One or two recordings of one form, as `Recording.as_json` gives them, as a page.

    code: the way from the page to a line of the repository.
    """
    lanes = any(recording.get("form") == LANES for recording in recordings)
    styles = ("page.css", *(["lanes.css"] if lanes else []))
    scripts = ("start.js", "lanes.js" if lanes else "run.js", "page.js")
    title = " beside ".join(recording["title"] for recording in recordings)
    parts = {
        "title": escape(f"X-ray of {title}"),
        "css": "".join((view.resource(view.SHARED_STYLE), *map(resource, styles))),
        "js": "\n".join((view.resource(view.SHARED_SCRIPT), *map(resource, scripts))),
        "code": escape(code),
        "data": embedded(recordings),
        "nojs": escape(f"This page needs JavaScript to step through {count(len(recordings), 'recording')}."),
    }
    text = resource("page.html")
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part)
    return text


def resource(name: str) -> str:
    return (files("gradus.course.xray") / "web" / name).read_text(encoding="utf-8")


def embedded(recordings: Sequence[dict[str, Any]]) -> str:
    """Encode recordings as JSON that cannot end its element early, whatever a model has written."""
    return json.dumps(list(recordings), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
