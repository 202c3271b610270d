"""The live X-ray's scripts and styles, for a page that inlines them.

The page calls `startXray(element, open)`. element: an empty section. open(signal, path): a function that fetches a path
of this server, "/xray" or "/xray/trace", with the page's key, and returns the Response. It returns {stop()}.
"""

from importlib.resources import files

SHARED_SCRIPT, SHARED_STYLE = "shared.js", "shared.css"
SCRIPTS = (SHARED_SCRIPT, "live.js")
STYLES = (SHARED_STYLE, "live.css")
"""A page joins them in this order."""


def resource(name: str) -> str:
    return (files("gradus.server.xray") / name).read_text(encoding="utf-8")


def script() -> str:
    return "\n".join(map(resource, SCRIPTS))


def style() -> str:
    return "\n".join(map(resource, STYLES))
