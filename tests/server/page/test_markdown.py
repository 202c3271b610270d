"""Answers as Markdown, in a browser: what it draws, that pieces make no difference, and what hostile texts can't do."""

import json
import random
import time
from importlib.resources import files

import pytest

from tests.server.conftest import running

SCRIPTS = ("dom.js", "inline.js", "markdown.js")
HELPERS = """
function drawn(text, cuts = []) {
  const element = document.createElement("div"), markdown = new Markdown(element);
  let from = 0;
  for (const cut of [...cuts, text.length]) {
    markdown.feed(text.slice(from, cut));
    from = cut;
  }
  markdown.end();
  element.normalize();
  for (const bar of element.querySelectorAll(".bar")) bar.remove();
  for (const link of element.querySelectorAll("a")) {
    for (const name of ["title", "target", "rel"]) link.removeAttribute(name);
  }
  return element;
}
"""


@pytest.fixture(scope="module")
def page(browser):
    """The real page, under its policy, with the renderer's functions in reach."""
    with running() as server, browser.tab(server.url) as tab:
        sources = [(files("gradus.server.page") / name).read_text(encoding="utf-8") for name in SCRIPTS]
        tab.run("\n".join([*sources, HELPERS, "0"]))
        yield tab


def drawn(page, text, cuts=()):
    return page.run(f"drawn({json.dumps(text)}, {json.dumps(list(cuts))}).innerHTML")


def elements(page, text):
    """The names of all elements that a text becomes."""
    return set(page.run(f"[...drawn({json.dumps(text)}).querySelectorAll('*')].map((each) => each.localName)"))


def code(text):
    return f'<div class="code"><pre tabindex="0"><code>{text}</code></pre></div>'


def table(head, body=""):
    return f'<div class="scroll" tabindex="0"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


CASES = {
    "Plain text.": "<p>Plain text.</p>",
    "One\ntwo\n\nthree": "<p>One\ntwo</p><p>three</p>",
    "# Title\ntext": "<h3>Title</h3><p>text</p>",
    "###### Small": "<h6>Small</h6>",
    "#no title": "<p>#no title</p>",
    "a **b** *c* _d_ __e__ ***f*** ~~g~~": "<p>a <strong>b</strong> <em>c</em> <em>d</em> <strong>e</strong> "
    "<strong><em>f</em></strong> <del>g</del></p>",
    "**a *b* c**": "<p><strong>a <em>b</em> c</strong></p>",
    "2 * 3 * 4, snake_case_name, a*": "<p>2 * 3 * 4, snake_case_name, a*</p>",
    "\\*no\\* \\`code\\`": "<p>*no* `code`</p>",
    "`a < b` and ``c ` d``": "<p><code>a &lt; b</code> and <code>c ` d</code></p>",
    "`**x**`": "<p><code>**x**</code></p>",
    "an `open one": "<p>an `open one</p>",
    "- a\n- b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
    "1. a\n2. b": "<ol><li><p>a</p></li><li><p>b</p></li></ol>",
    "3) a": '<ol start="3"><li><p>a</p></li></ol>',
    "- a\n  - b\n    - c\n- d": "<ul><li><p>a</p><ul><li><p>b</p><ul><li><p>c</p></li></ul></li></ul></li>"
    "<li><p>d</p></li></ul>",
    "1. a\n   - b\n2. c": "<ol><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ol>",
    "1. a\n\n   ```py\n   x = 1\n     y\n   ```\n2. b": "<ol><li><p>a</p>"
    + code("x = 1\n  y\n")
    + "</li><li><p>b</p></li></ol>",
    "- a\ncontinued\n\nafter": "<ul><li><p>a\ncontinued</p></li></ul><p>after</p>",
    "text\n- a": "<p>text</p><ul><li><p>a</p></li></ul>",
    "> a\n> - b\n\nc": "<blockquote><p>a</p><ul><li><p>b</p></li></ul></blockquote><p>c</p>",
    "---\n***\n- - -": "<hr><hr><hr>",
    "```python\ndef f():\n    return `1`\n```\nafter": code("def f():\n    return `1`\n") + "<p>after</p>",
    "```\n# no title\n- no list\n\n| no | table |\n": code("# no title\n- no list\n\n| no | table |\n"),
    "~~~\n```\n~~~": code("```\n"),
    "````\n```\n````": code("```\n"),
    "| a | b |\n|---|--:|\n| 1 | **2** |\n| 3 |\nafter": table(
        '<tr><th>a</th><th class="end">b</th></tr>',
        '<tr><td>1</td><td class="end"><strong>2</strong></td></tr><tr><td>3</td><td class="end"></td></tr>',
    )
    + "<p>after</p>",
    "| no | table |\ntext": "<p>| no | table |\ntext</p>",
    "| a \\| b |\n|---|": table("<tr><th>a | b</th></tr>"),
    "[a](https://b.org/c?d=e)": '<p><a href="https://b.org/c?d=e">a</a></p>',
    "see https://f.org/g.": '<p>see <a href="https://f.org/g">https://f.org/g</a>.</p>',
    "[**a**](http://b.org)": '<p><a href="http://b.org/"><strong>a</strong></a></p>',
    "![a picture](https://b.org/p.png)": '<p><a href="https://b.org/p.png">a picture</a></p>',
    "[x] [y](z) [w]": "<p>[x] [y](z) [w]</p>",
    "a\r\nb": "<p>a\nb</p>",
    "naïve 👍 \u2028 中文": "<p>naïve 👍 \u2028 中文</p>",
}


@pytest.mark.parametrize("text", CASES, ids=range(len(CASES)))
def test_it_draws(page, text):
    assert drawn(page, text) == CASES[text]


def test_a_link_leaves_no_trace_and_shows_where_it_leads(page):
    link = page.run("inline('[a](https://b.org)')[0].outerHTML")
    assert link == '<a href="https://b.org/" title="https://b.org/" target="_blank" rel="noopener noreferrer">a</a>'


def test_however_a_text_is_cut_into_pieces_the_same_comes_of_it(page):
    """Everything at once, every piece a character, and random cuts, of all cases joined in random orders."""
    rng = random.Random(7)
    texts = [*CASES, *("\n\n".join(rng.sample(list(CASES), 8)) for _ in range(20))]
    texts += ["\n".join(rng.sample(list(CASES), 8)) for _ in range(20)]
    for text in texts:
        whole = drawn(page, text)
        for cuts in (
            range(1, len(text)),
            *(sorted(rng.sample(range(len(text) + 1), min(len(text), 9))) for _ in range(4)),
        ):
            assert drawn(page, text, cuts) == whole, (text, list(cuts))


def test_random_marks_come_out_the_same_however_they_are_cut(page):
    rng = random.Random(11)
    marks = [
        *"*_`~#>-+|[]()!\\:1.\t ",
        "**",
        "```",
        "~~~",
        "---",
        "\n",
        "\n\n",
        "\n- ",
        "\n1. ",
        "\n> ",
        "    ",
        "  ",
        "ab",
        "é👍",
    ]
    marks += ["\n| a |\n|---|\n", "\n```py\n", "https://a.org", "](https://b.org)"]
    for _ in range(400):
        text = "".join(rng.choices(marks, k=rng.randint(2, 40)))
        whole = drawn(page, text)
        for cuts in (range(1, len(text)), sorted(rng.choices(range(len(text) + 1), k=3))):
            assert drawn(page, text, cuts) == whole, (text, list(cuts))


def test_a_wrong_renderer_is_caught_by_the_cuts(page):
    """One that decides a line's kind by the first piece alone."""
    page.run("globalThis.right = Blocks.prototype.feed")
    page.run(
        "Blocks.prototype.feed = function (text) { if (this.held === '') right.call(this, text); else this.end(); }"
    )
    try:
        assert drawn(page, "- a", [1]) != drawn(page, "- a")
    finally:
        page.run("Blocks.prototype.feed = right, 0")


# -- hostile texts -----------------------------------------------------------------------------------------------------

HARMLESS = {
    "p", "strong", "em", "del", "code", "pre", "div", "a", "ul", "ol", "li", "blockquote", "hr", "table", "thead",
    "tbody", "tr", "th", "td", "h3", "h4", "h5", "h6",
}  # fmt: skip
ATTACKS = [
    "<script>globalThis.hurt = 1</script>",
    "<img src=x onerror='globalThis.hurt = 1'>",
    "<svg onload='globalThis.hurt = 1'><iframe srcdoc='<script>parent.hurt=1</script>'>",
    "```html\n</code></pre><script>globalThis.hurt = 1</script>\n```",
    "```<img src=x onerror=alert(1)>\nx\n```",
    "| <script>hurt=1</script> |\n|---|\n| <b onclick=hurt=1>x</b> |",
    "[a](javascript:globalThis.hurt=1)",
    "[a](JaVaScRiPt:globalThis.hurt=1)",
    "[a](java\tscript:globalThis.hurt=1)",
    "[a](\x01javascript:globalThis.hurt=1)",
    "[a](data:text/html,<script>hurt=1</script>)",
    "[a](vbscript:x) [b](file:///etc/passwd) [c](//evil.org) [d](/health) [e](blob:https://a.org/x)",
    "[a](https:evil.org) [b](http:/\\evil.org)",
    '[a](https://b.org/" onclick="globalThis.hurt=1)',
    "[<img src=x onerror=hurt=1>](https://b.org/'><script>hurt=1</script>)",
    "https://b.org/<script>hurt=1</script>",
    "![x](javascript:hurt=1) ![y](https://b.org/y.png)",
    "&lt;script&gt;hurt=1&lt;/script&gt; &#x3c;script>",
    "<style>*{display:none}</style><link rel=stylesheet href=https://evil.org><base href=https://evil.org>",
    "<form action=https://evil.org><input name=key></form>",
    "<a href='javascript:hurt=1'>x</a>",
]


@pytest.mark.parametrize("text", ATTACKS, ids=range(len(ATTACKS)))
def test_no_text_becomes_an_element_or_an_address_that_runs(page, text):
    before = page.run("performance.getEntriesByType('resource').length")
    assert elements(page, text) <= HARMLESS
    assert (
        page.run(f"""(() => {{
      const element = drawn({json.dumps(text)});
      document.body.append(element);
      for (const each of element.querySelectorAll("*")) {{
        const odd = each.getAttributeNames().find((name) => !["href", "class", "start", "tabindex"].includes(name));
        if (odd) return odd;
        if (each.hasAttribute("href") && !/^https?:$/.test(each.protocol)) return each.href;
      }}
      element.remove();
      return globalThis.hurt ?? "unhurt";
    }})()""")
        == "unhurt"
    )
    assert page.run("performance.getEntriesByType('resource').length") == before, "it fetches nothing"


def test_text_that_looks_like_html_is_shown_as_it_is(page):
    assert page.run('drawn("<script>x</script> <b>y</b>").innerText') == "<script>x</script> <b>y</b>"


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "a b " * 250_000,
        "*" * 200_000,
        "*a " * 200_000,
        "**a* " * 100_000,
        "_" * 200_000,
        "`" * 200_000,
        "` `` ``` " * 50_000,
        "[" * 300_000,
        "[a](" * 150_000,
        "[a](b" * 150_000 + ")" * 100_000,
        "![" * 150_000,
        "]( " * 150_000,
        "> " * 300_000,
        "- " * 300_000,
        "1. " * 200_000,
        ">" * 300_000 + "x",
        "".join(" " * depth + "- a\n" for depth in range(1000)),
        "".join(">" * depth + "a\n" for depth in range(1000)),
        "|" * 300_000,
        "|a" * 300_000 + "\n" + "|-" * 300_000,
        "| a |\n|---|\n" + "| b |\n" * 50_000,
        "- a\n" * 50_000,
        "\n" * 500_000,
        " " * 500_000,
        "#" * 300_000,
        "```\n" * 50_001,
        "```" + "a" * 500_000,
        "https://" * 100_000,
        "https://a.org/" + "(" * 300_000,
        "\\" * 300_000,
        "-" * 300_000 + "\n" + "-" * 300_000,
        "- - " * 100_000 + "x",
    ],
    ids=range(33),
)  # fmt: skip
def test_a_long_text_takes_time_in_proportion_to_its_length(page, text):
    """The slowest of these takes less than a second; a renderer that is quadratic would take minutes."""
    page.run(f"globalThis.text = {json.dumps(text)}, 0")
    began = time.monotonic()
    shown = page.run("drawn(text).textContent.length > 0")
    assert time.monotonic() - began < 10
    assert shown or not text.strip("\n -`|")


def test_a_long_answer_in_small_pieces_is_not_drawn_again_and_again(page):
    """A piece costs as much at the end of a long paragraph, list or block of code as at its beginning."""
    for begin, piece in (
        ("", "some words "),
        ("```\n", "x = f(1)\n"),
        ("- a\n", "- an item\n"),
        ("|a|\n|-|\n", "|cell|\n"),
    ):
        early, late = page.run(f"""(() => {{
          const element = document.createElement("div"), markdown = new Markdown(element), times = [];
          markdown.feed({json.dumps(begin)});
          for (let round = 0; round < 20; round += 1) {{
            const began = performance.now();
            for (let at = 0; at < 1000; at += 1) markdown.feed({json.dumps(piece)});
            times.push(performance.now() - began);
          }}
          const least = (some) => Math.min(...some);
          return [least(times.slice(0, 5)), least(times.slice(15))];
        }})()""")
        assert late < 5 * early + 50, (begin, early, late)
