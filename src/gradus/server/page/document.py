"""The page as one document: styles and scripts are inlined, and its headers let it run nothing else.

The document is the same for everyone and holds no secret, so it needs no key. What it asks for does.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gradus.server.xray import view

STYLE = "page.css"
SCRIPTS = (
    "dom.js",
    "inline.js",
    "markdown.js",
    "wire.js",
    "store.js",
    "settings.js",
    "request.js",
    "answer.js",
    "messages.js",
    "status.js",
    "main.js",
)
"""The page's scripts, joined in this order into one function."""


@dataclass(frozen=True, slots=True)
class Document:
    """body: UTF-8. headers: its type, its ETag, and what a browser may do with it."""

    body: bytes
    headers: Mapping[str, str]

    @property
    def etag(self) -> str:
        return self.headers["etag"]

    def matches(self, if_none_match: str) -> bool:
        """Whether a browser that sends this header has the document already."""
        known = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
        return self.etag in known or "*" in known


@cache
def document() -> Document:
    """Join the files, once."""
    style = f"{view.style()}\n{resource(STYLE)}"
    script = f'"use strict";\n(() => {{\n{"".join(map(resource, SCRIPTS))}}})();\n'
    parts = {"style": style, "xray": view.script(), "script": script}
    text = resource("page.html")
    for name, part in parts.items():
        text = text.replace(f"/*{name}*/", part)
    body = text.encode()
    etag = hashlib.sha256(body).hexdigest()[:32]
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": policy((style,), (parts["xray"], script)),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-cache",  # kept, but asked for again: a new version shows at once
        "etag": f'"{etag}"',
        "vary": "accept",
    }
    return Document(body, headers)


def policy(styles: tuple[str, ...], scripts: tuple[str, ...]) -> str:
    """Write the Content-Security-Policy: these styles and scripts run, and they talk to this server alone.

    Trusted types forbid scripts to parse HTML, so no text of a model can become an element.
    """
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(map(hashed, scripts)),
        "style-src": " ".join(map(hashed, styles)),
        "img-src": "data:",  # the icon
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def hashed(text: str) -> str:
    """Name an inlined text by its hash, as the policy does."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def resource(name: str) -> str:
    return (files("gradus.server.page") / name).read_text(encoding="utf-8")


def prefers_html(accept: str) -> bool:
    """Whether an Accept header names HTML before JSON, as browsers do. `*/*` alone is a program's."""
    qualities = dict(map(_quality, accept.lower().split(",")))
    html, json = (
        next((qualities[kind] for kind in (name, f"{name.split('/')[0]}/*", "*/*") if kind in qualities), 0.0)
        for name in ("text/html", "application/json")
    )
    return html > json


def _quality(part: str) -> tuple[str, float]:
    kind, *parameters = (each.strip() for each in part.split(";"))
    given = next((each[2:] for each in parameters if each.startswith("q=")), "1")
    try:
        return kind, float(given)
    except ValueError:
        return kind, 0.0
