"""A template computes what it does in transformers, and takes no more time or memory than its conversation needs."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradus.errors import CheckpointError, RequestError
from gradus.loading.chat import ChatTemplate
from gradus.text.tools.tool import MAX_TOOLS
from tests.loading.hostile import HOSTILE
from tests.text import templates

# Of CPU time and of MB. On a crowded machine, 1 s of CPU time becomes almost 2 s.
MOST_SECONDS, MOST_GROWTH = 3.0, 100.0

MESSAGES = [
    {"role": "system", "content": "Be brief. Ünïcödé 👍 <b> & \"quotes\" 'too' {braces} 100%"},
    {"role": "user", "content": " one two  three\nfour\tfive\n", "name": "Ann"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": [1.5, None, True, "ß\x01"]}}}],
    },
    {"role": "tool", "content": "</think>done</think>", "tool_call_id": "1"},
]
TOOLS = [
    {"type": "function", "function": {"name": n, "parameters": {"type": "object", "z": 1, "a": [2]}}} for n in "fg"
]

SAME = """
messages | length, messages[0].content | trim, messages[1].content.strip(), messages[1]['content'].split()
messages[3].content.split('</think>')[-1].lstrip('\\n'), messages[3].content.rsplit('</think>', 1)
'a,b' .partition(','), messages[::-1][0].role, messages[1:] | length, 'abcdef'[::2], messages[0].content[3:9]
'abc'[-1], messages[-1].role, 'a' ~ 1 ~ none ~ [1, 'x'] ~ {'a': 1}, 'a' + 'b' + 'c', 1 + 2 + 3.5, [1] + [2] + [3]
(1,) + (2,), 'x' * 3, [0] * 3, 2 ** 10, 7 // 2, 7 % 4, 7 / 2, 7 - 2 - 1, -3, 2 ** -1, 'abc' + ('d' + 'e')
'%s-%5d-%.2f' % ('a', 3, 1.5), '%(k)s' % {'k': 'v'}, 'a' in 'abc', 'x' not in 'abc', 'role' in messages[0]
1 in [1, 2], messages[0] in messages, 'a' == 'a', [1, [2]] == [1, [2]], 1 < 2 < 3, 'a' < 'b'
messages[0].role != messages[1].role, not messages, messages[0].missing is defined, 5 is divisibleby 5, 4 is even
'A' is upper, 'a' is lower, messages is sequence, messages[0] is mapping, 'x' is string, 1 is number, none is none
true is boolean, 1.5 is float, 1 is integer, [1] is iterable, 'a' is in 'abc', 1 is sameas 1, 3 is gt 2, 3 is eq 3
'e' is filter, messages | map(attribute='role') | join(', ')
messages | selectattr('role', 'equalto', 'user') | list | length, messages | rejectattr('content') | list | length
messages | map('length') | sum, [3, 1, 2] | sort | join('-'), ['b', 'A'] | sort
['b', 'A'] | sort(case_sensitive=true), [1, 2, 2] | unique | list, [1, 2] | sum(start=3)
messages | groupby('role') | map(attribute='grouper') | list, {'b': 1, 'a': 2} | dictsort, {'a': 1} | items | list
[1, 2, 3, 4, 5] | batch(2, 'x') | list, [1, 2, 3] | slice(2) | map('list') | list, [3, 1] | max, [3, 1] | min
[1, 2] | first, [1, 2] | last, [1, 2] | reverse | list, 'abc' | reverse, 'abc' | list, ['x', 'y'] | join
messages | join('', attribute='role'), 1.55 | round(1), 2.5 | round | int, 1.2 | round(0, 'ceil'), '3' | int
'x' | int(7), 'ff' | int(0, 16), '1.5' | float, -3 | abs, 'aBc' | upper, 'aBc' | lower, 'a bc' | title
'abC' | capitalize, 'a b c' | wordcount, 'abc' | center(9), 'a\\nb' | indent, 'a\\nb' | indent(2, true)
'a\\n\\nb' | indent('> ', true, true), ('a' * 300) | truncate(10), ('word ' * 99) | truncate(20)
'aXbX' | replace('X', 'yy'), 'aXbX' | replace('X', 'yy', 1), 'ab' | replace('', '-'), 'a b' | urlencode
{'a': 'b c'} | urlencode, '<a href="x">&' | e, '<' | escape | string, '<' | safe, ('<' | e) + '>', ('<' | e) ~ '>'
('%s' | e) % '<', ('a' | e) * 2, ('<' | e).replace('l', '<'), '%s-%03d' | format('a', 7)
'{}-{:>4}-{a!r}'.format(1, 'x', a='y'), '{0.role}'.format(messages[0]), '{a}'.format_map({'a': 3})
1000000 | filesizeformat, none | default('x'), missing | default('d'), '' | d('e', true), messages | tojson
tools | tojson(indent=2), {'b': 1, 'a': 2} | tojson(sort_keys=true), 'é\\x01' | tojson
'é' | tojson(ensure_ascii=true), tools | tojson(indent=4, separators=(',', ': '))
[1, 2] | tojson(separators=(',', ':')), messages[2].tool_calls[0].function.arguments, 'abc'.startswith('a')
'abc'.endswith(('b', 'c')), 'abcabc'.find('c'), 'abcabc'.rfind('c'), 'abcabc'.count('bc'), 'a'.join(['x', 'y'])
'-'.join(messages | map(attribute='role')), 'abc'.upper(), 'ß'.upper(), 'aBc'.swapcase(), 'a b'.title()
'abc'.capitalize(), 'x'.center(5, '*'), 'x'.ljust(3), 'x'.rjust(3), '7'.zfill(3), 'a\\tb'.expandtabs(4)
'a\\nb\\r\\nc'.splitlines(), 'xxaxx'.strip('x'), 'a-b'.replace('-', '+'), 'abc'.removeprefix('a')
'abc'.removesuffix('c'), 'abc'.index('c'), '12'.isdigit(), 'ab'.isalpha(), messages[0].items() | list
messages[0].keys() | list, messages[0].values() | list, messages[0].get('role'), messages[0].get('x', 'y')
[1, 2, 1].count(1), [1, 2].index(2), (1, 2).index(2), dict(a=1), range(3) | list, range(5, 0, -2) | list
strftime_now('%Y') | length, messages[0], [none, true, 1.0, 'x'], 'a' if messages else 'b', ('b' if not messages)
(1, 'a'), {'a': {'b': [1]}}, 1.0, none, true, joiner(',')() ~ 'x', cycler('a', 'b').next(), namespace(a=1).a
messages | map('upper') | list | length, 'x' | attr('upper') is defined, messages | select('mapping') | list | length
[1, none] | select | list, [0, 1] | reject('odd') | list, messages is iterable, 'A' | lower == 'a'
"""
EXPRESSIONS = [line.rstrip(",") for line in SAME.strip().splitlines()]
STATEMENTS = [
    "{% for m in messages %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex"
    "0 }}{{ loop.previtem.role if loop.previtem }}{{ loop.nextitem.role if loop.nextitem }}{{ loop.cycle('a'"
    ", 'b') }}{{ loop.changed(m.role) }}{% else %}none{% endfor %}",
    "{% for m in messages if m.role != 'user' %}{{ loop.index }}{{ m.role }}{% if loop.index == 2 %}"
    "{% break %}{% endif %}{% endfor %}",
    "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% elif m.content %}{{ m.content }}"
    "{% else %}-{% endif %}{% endfor %}",
    "{% for x in [] %}{% else %}empty{% endfor %}{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}"
    "{% endfor %}{% for c in 'abc' %}{{ c }}.{% endfor %}",
    "{% macro f(a, b='x') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{{ caller() if caller }}"
    "{% endmacro %}{{ f(1) }}{{ f(1, 2, 3, d=4) }}{% call f('q') %}inside{% endcall %}{{ f.name }}",
    "{% macro tree(n) %}({% for c in n %}{{ tree(c) }}{% endfor %}){% endmacro %}{{ tree([[], [[]]]) }}",
    "{% for n in [[], [[]]] recursive %}<{{ loop.depth }}{{ loop(n) }}>{% endfor %}",
    "{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% set ns.s = ns.s ~ m.role %}{% endfor %}{{ ns.n }}{{ ns.s }}",
    "{% set x %}a{{ messages[0].role }}{% endset %}{{ x | upper }}{% set y | trim %} b {% endset %}{{ y }}"
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% filter upper %}a{{ messages[0].role }}{% endfilter %}{% with z = 3 %}{{ z }}{% endwith %}"
    "{% raw %}{{ x }}{% endraw %}{# gone #}",
    "{% generation %}x{{ 1 }}{% endgeneration %}  {%- if true %} a {%- endif %}\n    {% if true %}\nb\n{% endif %}\nc",
    "{{ messages[0].content }}{{ messages }}{{ missing }}{{ none }}{{ 1 }}{{ 'x' }}{{ bos_token + messages[0"
    "]['role'] + '\n' }}",
]
CALL = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(scope="module")
def theirs():
    """Rendering by transformers' own environment."""
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    return lambda source: utilities._compile_jinja_template(source).render(
        messages=MESSAGES, tools=TOOLS, documents=None, **CALL
    )


@pytest.mark.parametrize("line", EXPRESSIONS)
def test_operations_have_the_results_that_they_have_in_transformers(theirs, line):
    source = "".join("{{ (" + each + ") }};" for each in _split(line))
    assert ChatTemplate(source).render(MESSAGES, tools=TOOLS, **CALL) == theirs(source)


@pytest.mark.parametrize("source", STATEMENTS)
def test_statements_do_what_they_do_in_transformers(theirs, source):
    assert ChatTemplate(source).render(MESSAGES, tools=TOOLS, **CALL) == theirs(source)


def _split(line):
    """Split at the commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, None
    for at, letter in enumerate(line):
        if quote:
            quote = None if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth and not quote and line[at : at + 2] == ", ":
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


# -- what no template may take -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rendered():
    """Each hostile template's end, in one process with limits of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.loading.hostile"], capture_output=True, text=True, timeout=300, env=os.environ
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_before_it_takes_time_or_memory(rendered, name):
    found = rendered[name]
    assert found["refused"] and "\n" not in found["refused"] and len(found["refused"]) < 300
    assert found["seconds"] < MOST_SECONDS and found["grown"] < MOST_GROWTH


def test_the_refusal_names_the_template_and_the_limit():
    endless = ChatTemplate(HOSTILE["nested empty loops"], "m.gguf: chat template")
    with pytest.raises(RequestError) as error:
        endless.render([{"role": "user", "content": "go"}], **CALL)
    said = "messages: the model's template (m.gguf: chat template) needs more than 1000584 steps for this conversation"
    assert str(error.value) == said and error.value.limit == "1000584 steps"
    with pytest.raises(RequestError, match="needs more than 48 MiB of memory"):
        ChatTemplate(HOSTILE["doubled by +"]).render([{"role": "user", "content": "go"}], **CALL)


@pytest.mark.parametrize(
    "source",
    [
        "".join(f"{{% set a{n} = 1 %}}{{% if x %}}{{% endif %}}" for n in range(9000)),
        "{{ a }}" * 12_000,
        "{% if a %}" + "{% elif a %}" * 5_200 + "{% endif %}",
        "{% if a %}" * 300 + "{% endif %}" * 300,
        "{% for a in b %}" * 300 + "{% endfor %}" * 300,
        "{% for a in b %}" * 25 + "{% endfor %}" * 25,
        "{{ " + "a + " * 12_000 + "a }}",
        "{{ " + "(" * 100_000 + "a }}",
        "{{ " + "9" * 200_000 + " }}",
        "{{ '" + "x" * 200_000 + " }}",
        "{% autoescape 'x' | center(2000000000) %}{% endautoescape %}",
        "{% block a %}{{ self.a() }}{% endblock %}",
        "{{ x | pprint }}",
        "{{ x | urlize }}",
    ],
)
def test_a_template_that_would_take_long_to_compile_is_refused(source):
    begun = time.process_time()
    with pytest.raises(CheckpointError) as error:
        ChatTemplate(source, "m.gguf: chat template")
    assert time.process_time() - begun < 2 * MOST_SECONDS and str(error.value).startswith("m.gguf: chat template: ")


# -- what every conversation may take ----------------------------------------------------------------------------------

SHAPES = {
    "one long message": [{"role": "user", "content": "wörd " * 200_000}],
    "many messages": [{"role": ("user", "assistant")[n % 2], "content": f"{n:100}"} for n in range(9_999)],
    "long messages": [{"role": ("user", "assistant")[n % 2], "content": f"{n}{'言葉' * 2_000}"} for n in range(251)],
    "control characters": [{"role": "user", "content": "\x01" * 1_000_000}],
}
QWEN_LIKE = (
    "{% set ns = namespace(last=messages | length - 1) %}{% for m in messages[::-1] %}"
    "{% if m.role == 'user' and not (m.content.startswith('<a>') and m.content.endswith('</a>')) %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for t in tools or [] %}{{ '\n' ~ (t | tojson) }}{% endfor %}{% for m in messages %}"
    "{% if '</think>' in m.content %}{% set c = m.content.split('</think>')[-1].lstrip('\n') %}"
    "{% else %}{% set c = m.content | trim %}{% endif %}{{ '<|im_start|>' + m.role + '\n' + c.strip() +"
    " '<|im_end|>' + '\n' }}{{ m | tojson }}{% endfor %}"
)
REAL = {name: source for name, source in vars(templates).items() if name.isupper()} | {"QWEN_LIKE": QWEN_LIKE}


CALLS = [
    {"id": f"00000000{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
    for n, (name, arguments) in enumerate([("f", {"a": 'ß "x"', "b": [1.5, {"d": True, "c": "y"}]}), ("g", {"z": 1})])
]
TURNS = [
    {"role": "system", "content": " Be brief. /no_think"},
    {"role": "user", "content": " Where?\n"},
    {"role": "assistant", "content": "<|channel>x<channel|>", "tool_calls": CALLS, "reasoning_content": "Hm."},
    {"role": "tool", "content": '<b> & "here"', "tool_call_id": "000000000"},
    {"role": "tool", "content": "there", "tool_call_id": "000000001", "name": "g"},
    {"role": "assistant", "content": "\nHere.\n"},
    {"role": "user", "content": "Thanks 👍"},
]
DEEP = {
    "type": "object",
    "properties": {
        "place": {
            "type": "object",
            "description": "Où?",
            "properties": {"city": {"type": "string", "enum": ["é", "b"]}},
        },
        "days": {"type": "array", "items": {"type": "string", "description": "d"}},
    },
    "required": ["place"],
}
DECLARED = [
    {"type": "function", "function": {"name": n, "description": "<Does> it.", "parameters": DEEP}} for n in "fg"
]


@pytest.mark.parametrize("turns", [TURNS, TURNS[1:], TURNS[:2], TURNS[1:5]], ids=["all", "no system", "one", "results"])
@pytest.mark.parametrize("name", REAL)
def test_the_templates_of_families_render_as_in_transformers(name, turns):
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    theirs, ours = utilities._compile_jinja_template(REAL[name]), ChatTemplate(REAL[name])
    for tools in (None, DECLARED):
        for settings in ({}, {"enable_thinking": True}, {"enable_thinking": False}, {"thinking": True}):
            try:
                expected = theirs.render(messages=turns, tools=tools, documents=None, **CALL, **settings)
            except Exception as error:
                with pytest.raises(RequestError, match=re.escape(str(error)[:60])):
                    ours.render(turns, tools=tools, settings=settings, **CALL)
            else:
                assert ours.render(turns, tools=tools, settings=settings, **CALL) == expected


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", REAL)
def test_long_conversations_with_many_tools_are_rendered(name, shape):
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string", "description": "d" * 80} for n in range(30)}}
    tools = [
        {"type": "function", "function": {"name": f"f{n}", "description": "d", "parameters": schema}}
        for n in range(MAX_TOOLS)
    ]
    text = ChatTemplate(REAL[name]).render(SHAPES[shape], tools=tools, **CALL)
    assert sum(len(message["content"].strip()) for message in SHAPES[shape]) <= len(text)


def test_renderings_in_several_threads_have_budgets_of_their_own():
    good, bad = ChatTemplate(QWEN_LIKE), ChatTemplate(HOSTILE["nested empty loops"])
    found, together = [], threading.Barrier(2)

    def render():
        together.wait()
        for _ in range(2):
            found.append(good.render(MESSAGES[:2], **CALL))
            with pytest.raises(RequestError, match=r"needs more than \d+ steps"):  # and not that it has no budget
                bad.render(MESSAGES[:2], **CALL)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(render) for _ in range(2)]:
            done.result()
    assert len(found) == 4 and len(set(found)) == 1


def test_one_rendering_leaves_nothing_to_the_next():
    template = ChatTemplate(
        "{% for a in range(messages | length * 2000) %}{% for b in range(99) %}{% endfor %}{% endfor %}"
    )
    template.render(MESSAGES[:1], **CALL)
    for _ in range(2):
        with pytest.raises(RequestError):
            template.render(MESSAGES, **CALL)
        template.render(MESSAGES[:1], **CALL)
