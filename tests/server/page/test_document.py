"""The document: its readers, its headers, and that it needs nothing from elsewhere."""

import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from gradus.server.http.keys import VARIABLE
from gradus.server.page.document import SCRIPTS, STYLE, document, hashed, prefers_html
from gradus.server.xray import view
from tests.server.conftest import running

FIREFOX = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
HTML = {"accept": FIREFOX}


@pytest.fixture(scope="module")
def server():
    with running(allowed_hosts=["gradus.example.org"]) as server:
        yield server


class Elements(HTMLParser):
    """Every element's name and attributes, and the texts of styles and scripts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.texts, self.inside = [], {"style": [], "script": []}, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self.inside = tag

    def handle_data(self, data):
        if self.inside in self.texts and data.strip():
            self.texts[self.inside].append(data)
            self.inside = None


def policy(answer):
    rules = (rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
    return {name: value.split() for name, value in rules}


# -- readers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        (FIREFOX, True),
        ("text/html", True),
        ("text/html;q=0.9, application/json;q=0.8", True),
        ("TEXT/HTML", True),
        ("text/*, application/json;q=0.1", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("application/json, text/html;q=0.9", False),
        ("application/json, text/html", False),
        ("text/html;q=0", False),
        ("text/html;q=much", False),
        ("text/plain", False),
        (";;,,=", False),
    ],
)
def test_browsers_get_the_page_and_programs_the_list_of_routes(server, accept, html):
    answer = server.http.get("/", headers={"accept": accept})
    assert prefers_html(accept) is html and answer.status_code == 200 and answer.headers["vary"] == "accept"
    if html:
        assert answer.headers["content-type"] == "text/html; charset=utf-8" and "<title>Gradus" in answer.text
    else:
        assert answer.json()["name"] == "gradus" and answer.json()["routes"]["/"] == "GET"


def test_no_page_leaves_the_list_of_routes_for_everyone(serving):
    answer = serving(page=False).http.get("/", headers=HTML)
    assert answer.json()["name"] == "gradus" and "vary" not in answer.headers
    assert "content-security-policy" not in answer.headers


def test_the_page_is_public_and_nothing_else_is_for_a_browser(monkeypatch):
    monkeypatch.setenv(VARIABLE, "a-key-of-my-own-choice")
    with running() as server:
        assert server.http.get("/", headers=HTML).status_code == server.http.head("/", headers=HTML).status_code == 200
        assert server.http.get("/").status_code == 401, "the list of routes needs a key"
        for method, path in [
            ("POST", "/"), ("PUT", "/"), ("OPTIONS", "/"), ("GET", "/?"), ("GET", "/stats"), ("GET", "/xray"),
            ("GET", "/index.html"), ("GET", "/v1/models"), ("GET", "/openapi.json"),
        ]:  # fmt: skip
            answer = server.http.request(method, path, headers=HTML)
            assert answer.status_code == (200 if path == "/?" and method == "GET" else 401), (method, path)
    with running(page=False) as server:
        assert server.http.get("/", headers=HTML).status_code == 401


def test_it_is_served_by_a_proxy_s_name_whose_pages_may_ask(server):
    own = {"host": "gradus.example.org", "origin": "https://gradus.example.org", "sec-fetch-site": "same-origin"}
    assert (
        server.http.get("/", headers=HTML | {"host": "gradus.example.org", "sec-fetch-site": "none"}).status_code == 200
    )
    assert server.http.post("/generate", json={"prompt": "a", "max_tokens": 1}, headers=own).status_code == 200
    assert server.http.get("/", headers=HTML | {"host": "evil.example.org"}).status_code == 403


# -- headers -----------------------------------------------------------------------------------------------------------


def test_its_policy_runs_its_own_scripts_and_reaches_this_server_alone(server):
    answer = server.http.get("/", headers=HTML)
    elements = Elements(answer.text)
    assert policy(answer) == {
        "default-src": ["'none'"],
        "script-src": [hashed(text) for text in elements.texts["script"]],
        "style-src": [hashed(text) for text in elements.texts["style"]],
        "img-src": ["data:"],
        "connect-src": ["'self'"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
        "frame-ancestors": ["'none'"],
        "require-trusted-types-for": ["'script'"],
        "trusted-types": ["'none'"],
    }
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"


def test_a_browser_that_has_it_gets_304(server):
    answer = server.http.get("/", headers=HTML)
    tag = answer.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = server.http.get("/", headers=HTML | {"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert "content-security-policy" in again.headers
    assert server.http.get("/", headers=HTML | {"if-none-match": '"other"'}).status_code == 200
    assert answer.headers["cache-control"] == "no-cache"


# -- what is in it -----------------------------------------------------------------------------------------------------


def test_it_needs_nothing_from_elsewhere():
    text = document().body.decode()
    elements = Elements(text)
    for tag, attributes in elements.found:
        assert not {name for name in attributes if name.startswith("on")} and "style" not in attributes, tag
        for name in ("src", "href", "action", "srcset", "data", "poster"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, name)
    assert {tag for tag, _ in elements.found}.isdisjoint({"iframe", "object", "embed", "base", "img"})
    addresses = set(re.findall(r"""[a-z]+://[^\s"'`\\)]+""", text)) - {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/2000/svg'",
    }
    assert not {each for each in addresses if re.match(r"\w+://\w", each)}
    [style] = elements.texts["style"]
    assert "@import" not in style and "url(" not in style


def test_no_script_parses_html_or_code_from_text():
    text = document().body.decode()
    for name in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
        "srcdoc",
    ):
        assert name not in text, name


def test_every_file_of_the_folder_is_in_it():
    names = {path.name for path in files("gradus.server.page").iterdir() if not path.name.startswith("__")}
    assert names == {*SCRIPTS, STYLE, "page.html", "document.py"}
    text = document().body.decode()
    assert view.script() in text and view.style() in text
    for name in (*SCRIPTS, STYLE):
        assert (files("gradus.server.page") / name).read_text(encoding="utf-8") in text
