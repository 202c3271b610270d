"""An engine in C keeps every phase's promises, over both transports; with a fault in it, the judge shows a case.

The course's own engines (reference.py) keep them too, so the judge asks nothing that only one implementation does.
"""

import json

import pytest

from gradus.course.foreign.judge import CLAIMS, judge
from gradus.course.foreign.program import Fault, Message, Program
from tests.course.conftest import mistakes
from tests.course.foreign.conftest import ENGINE
from tests.course.foreign.reference import Reference

MOST_LINES = 500  # blank ones not counted

WRONG = {
    # mistake: the phase, the right text, the wrong text, what the sentence must say
    "heads that turn backward": (
        "p00",
        "b * cosf(angle) + a * sinf(angle)",
        "b * cosf(angle) - a * sinf(angle)",
        "the oracle's is",
    ),
    "half of a seed": (
        "p00",
        "(uint32_t)(seed >> 32)}",
        "0}",
        "(tokens drawn with a seed are the oracle's)",
    ),
    "the latest request first": (
        "p00",
        "else queue[queued++] = s;",
        "else {\n        memmove(queue + running + 1, queue + running, (queued++ - running) * sizeof *queue);\n"
        "        queue[running] = s;\n    }",
        "a, b and c came in this order",
    ),
    "everything again for every token": (
        "p01",
        "        s->count = smaller(s->known - s->stored, left);\n        while",
        "        s->stored = 0, s->count = smaller(s->known - s->stored, left);\n        while",
        "has 9 positions stored, so its span starts at 9; yours starts at 0 and computes them again",
    ),
    "everything again, and a report that hides it": (
        "p01",
        "    int end = s->stored + s->count;\n",
        "    int end = s->stored + s->count;\n"
        "    for (int at = 0; at < s->stored; at++) forward(s->tokens[at], at, s->table, NULL);\n",
        "as if all positions were computed again",
    ),
    "one request at a time": (
        "p02",
        "smaller(queued, settings.sequences)",
        "smaller(queued, 1)",
        "a, b and c have a place and 5 tokens each to make; yours computed in step 1: a: 3 from 0",
    ),
    "one page for all": (
        "p02",
        "pages[best] = (Page){.users = 1};",
        "best = 0, pages[best] = (Page){.users = 1};",
        "the oracle's is",
    ),
    "a batch that runs to its end": (
        "p03",
        "bool room = running == before;",
        "bool room = before == 0;",
        "a ended in step 2, so c takes its place next to b in step 3; yours computed: b: 1 from 7",
    ),
    "a page more than is needed": (
        "p04",
        "(length + settings.page_size - 1) / settings.page_size",
        "length / settings.page_size + 1",
        "positions 0 to 3 of request 2 (b, a prompt of 4 tokens",
    ),
    "pages that never return": (
        "p04",
        "    shrink(queue[place], 0);\n    free(queue[place]);",
        "    free(queue[place]);",
        "which makes 6; the pool has 10",
    ),
    "no refusal": (
        "p04",
        "pages_for(s->limit - 1) > settings.pages",
        "pages_for(s->limit - 1) > PAGES",
        "need 9 pages of 4, and the pool has 6: a refusal; yours accepts them",
    ),
    "pages for the longest answer": (
        "p04",
        "if (!grow(s, s->stored + s->count, running))",
        "if (!grow(s, s->limit, running))",
        "need pages of 4",
    ),
    "room for the longest answer": (
        "p04",
        "if (!grow(s, s->stored + s->count, running))",
        "if (pages_for(s->limit) > available(true) || !grow(s, s->stored + s->count, running))",
        "so both start; yours computed in step 1: a: 6 from 0",
    ),
    "preempted to the end of the queue": (
        "p04",
        "shrink(queue[--running], 0);\n        if",
        "{\n            Sequence *last = queue[--running];\n            shrink(last, 0);\n"
        "            memmove(queue + running, queue + running + 1, (queued - running - 1) * sizeof *queue);\n"
        "            queue[queued - 1] = last;\n        }\n        if",
        "b came before c, so it resumes before c starts",
    ),
    "nothing is found again": (
        "p05",
        "if (settings.sharing) publish(s);",
        "",
        "begins with a's two whole pages: its first span starts at 8; yours starts at 0",
    ),
    "a page's first token": (
        "p05",
        "size_t size = settings.page_size * sizeof *tokens;",
        "size_t size = sizeof *tokens;",
        "agrees with a in 7 tokens: one whole page: its first span starts at 4; yours starts at 8",
    ),
    "a page behind any other": (
        "p05",
        "pages[i].known && pages[i].parent == parent &&",
        "pages[i].known && parent < PAGES &&",
        "the same tokens at other positions: its first span starts at 0; yours starts at 8",
    ),
    "prompts alone are found again": (
        "p05",
        "i < s->stored / settings.page_size",
        "i < smaller(s->stored, s->prompt) / settings.page_size",
        "begins with a's prompt and answer, 13 tokens: its first span starts at 12; yours starts at 4",
    ),
    "the page used last is evicted": (
        "p05",
        "if (--pages[page].users == 0) pages[page].idle_since = pages[page].known ? ++releases : 0;",
        "if (--pages[page].users == 0) pages[page].idle_since = pages[page].known ? 1000000 - ++releases : 0;",
        "(the least recently used page is evicted ends first)",
    ),
    "no budget": (
        "p06",
        "settings.budget ? settings.budget : INT_MAX",
        "INT_MAX",
        "the budget is 8 tokens per step; yours computed",
    ),
    "a token of every chunk": (
        "p06",
        "bool newest = at >= s->known - 1;",
        "bool newest = at >= s->known - 1 || at + 1 == end;",
        "tokens of its prompt to compute yet; yours has made",
    ),
    "a prompt at a time": (
        "p06",
        "while (room && left > 0 &&",
        "while (room && left == settings.budget - running &&",
        "a's last 3 tokens leave 5 for b in step 2",
    ),
    "the high half first": (
        "p07",
        "(at % 2 ? 4 : 0)",
        "(at % 2 ? 0 : 4)",
        "(tokens of int4 weights are those of the weights that they mean)",
    ),
    "codes without a sign": (
        "p07",
        "((const int8_t *)w->codes)[at]",
        "w->codes[at]",
        "(tokens of int8 weights are those of the weights that they mean)",
    ),
    "a grid that begins at zero": (
        "p07",
        " + w->offset[at / model.group]",
        "",
        "the oracle's is",
    ),
    "no guess": (
        "p08",
        "decodes && most > 0 ?",
        "decodes && most > 99 ?",
        "tokens take at most 45 steps; yours took 60",
    ),
    "a token for every guess": (
        "p08",
        "if (at + 1 == end || guessed != s->tokens[at + 1]) return",
        "if (at + 1 == end || (guessed < 0)) return",
        "tokens in this step; yours made 5",
    ),
    "pages that wrong guesses keep": (
        "p08",
        "    while (s->pages > pages_for(length)) drop(s->table[--s->pages]);\n",
        "    while (!length && s->pages) drop(s->table[--s->pages]);\n",
        "need pages of 4",
    ),
    "guesses that no report shows": (
        "p08",
        'say_list("drafts", s->tokens + s->known, s->drafts);',
        'say_list("drafts", s->tokens + s->known, 0);',
        "tokens, of which the span computes",
    ),
    "the whole answer at its end": (
        "p13",
        "    written = 0; /* a step's report has no reader here */\n",
        "    if (!over) return;\n    made = s->limit - s->prompt, written = 0;\n",
        "as if the stream had waited for the whole answer",
    ),
    "one stream at a time": (
        "p13",
        "smaller(queued, settings.sequences)",
        "smaller(queued, 1)",
        "one began after another had ended",
    ),
    "a queue without a bound": (
        "p13",
        "if (queued >= settings.places) return",
        "if (queued >= SEQUENCES) return",
        "a third is answered with 503, yours with 200",
    ),
    "answers for clients that left": (
        "p13",
        "MSG_PEEK | MSG_DONTWAIT) == 0)",
        "MSG_PEEK | MSG_DONTWAIT) == 2)",
        "3 s later another is still answered with 503",
    ),
    "an end in the middle of a request": (
        "p13",
        "    drop_clients_that_left();\n    if",
        '    if (queued) exit((fputs("out of memory", stderr), 3));\n    if',
        "(exit code 3); its stderr ends: out of memory, when checking that",
    ),
    "any token": (
        "p13",
        "s->tokens[i] < 0 || s->tokens[i] >= model.vocabulary",
        "s->tokens[i] < 0",
        '{"prompt": [1, 9999], "max_tokens": 2} is answered with 400, yours with 200',
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_the_engine_keeps_the_promises_of_every_phase(name, engine, models):
    command = f"{engine} {{port}}" if name == "p13" else str(engine)
    verdict = judge(name, command, models)
    assert verdict.passed, verdict.sentence
    assert verdict.kept


@pytest.mark.parametrize("name", ["p03", "p05"])
def test_messages_are_the_same_over_http(name, engine, models):
    verdict = judge(name, f"{engine} {{port}}", models)
    assert verdict.passed, verdict.sentence


@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_fault_is_shown_by_a_case(mistake, compiled, models):
    phase, right, wrong, says = WRONG[mistake]
    source = ENGINE.read_text(encoding="utf-8")
    assert source.count(right) == 1, f"engine.c has this {source.count(right)} times: {right}"
    program = compiled(source.replace(right, wrong), "-O1")
    verdict = judge(phase, f"{program} {{port}}" if phase == "p13" else str(program), models)
    assert not verdict.passed
    assert says in verdict.sentence, verdict.sentence


def test_every_phase_has_a_fault_that_is_caught():
    assert {phase for phase, *_ in WRONG.values()} == CLAIMS.keys()


def test_the_engine_is_short():
    lines = ENGINE.read_text(encoding="utf-8").splitlines()
    assert sum(bool(line.strip()) for line in lines) < MOST_LINES
    assert max(map(len, lines)) <= 120


class InThisProcess(Program):
    """The course's own engine, named by its phase, which answers lines. (test_racing.py runs it as a program.)"""

    def __init__(self, command: str, seconds: float) -> None:
        self.seconds, self.http, self.channel = seconds, None, self
        self.reference = Reference(command)

    def ask(self, message: Message, seconds: float) -> bytes:
        return json.dumps(self.reference.answer(json.loads(json.dumps(message)))).encode()

    def close(self) -> None:
        pass

    def fault(self, what: str) -> Fault:
        return Fault(what)


@pytest.mark.parametrize("name", [name for name in CLAIMS if name not in ("p07", "p13")])
def test_the_courses_own_engine_keeps_its_promises(name, models, monkeypatch):
    """p07's quantizes as it loads, and p13 has none."""
    monkeypatch.setattr("gradus.course.foreign.judge.Program", InThisProcess)
    verdict = judge(name, name, models)
    assert verdict.passed, verdict.sentence
