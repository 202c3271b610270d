"""Renders one hostile template after the other in a process of its own, and prints what each took, as JSON."""

import json
import resource
import sys
import time

from gradus.errors import GradusError
from gradus.loading.chat import ChatTemplate

MOST_SPACE = 6 << 30  # a template that escapes its budget ends this process, not the machine
MOST_SECONDS = 120

GO = "messages[0].content == 'go'"


def loop(body: str, ends: str = "{% endfor %}") -> str:
    return "{% for a in range(99999) %}" + body + ends


ENDLESS = loop(loop(""))
TWICE = "{% for i in range(64) %}"
HOSTILE = {
    "nested empty loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "nested empty loops on a word": "{% if " + GO + " %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}",
    "loops with conditions": (
        "{% for a in range(99999) if a %}{% for b in range(99999) if not b %}{% endfor %}{% endfor %}"
    ),
    "a condition that is costly": "{% set t = 'x' * 9999999 %}{% for a in range(99999) if 'y' in t %}{% endfor %}",
    "a loop over letters": "{% set t = 'x' * 9999999 %}{% for a in t %}{% for b in t %}{% endfor %}{% endfor %}",
    "a long body": "{% for a in range(99999) %}" + "{{ a }}" * 5000 + "{% endfor %}",
    "a body of conditions": "{% for a in range(99999) %}" + "{% if a %}{% endif %}" * 4000 + "{% endfor %}",
    "doubled by ~": "{% set n = namespace(s='x') %}" + TWICE + "{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubled by +": "{% set n = namespace(s='x') %}" + TWICE + "{% set n.s = n.s + n.s %}{% endfor %}",
    "doubled lists": "{% set n = namespace(s=[1]) %}" + TWICE + "{% set n.s = n.s + n.s %}{% endfor %}",
    "lists in lists, written": (
        "{% set n = namespace(s=[1]) %}" + TWICE + "{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}"
    ),
    "lists in lists, compared": "{% set n = namespace(s=[1], t=[1]) %}" + TWICE + "{% set n.s = [n.s, n.s] %}"
    "{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.s == n.t }}",
    "lists in lists, as JSON": "{% set n = namespace(s=[1]) %}" + TWICE + "{% set n.s = [n.s, n.s] %}{% endfor %}"
    "{{ n.s | tojson }}",
    "tuples in tuples, as a key": "{% set n = namespace(s=(1,)) %}" + TWICE + "{% set n.s = (n.s, n.s) %}{% endfor %}"
    "{{ {n.s: 1} }}",
    "objects in objects": "{% set n = namespace(s={}) %}" + TWICE + "{% set n.s = {'a': n.s, 'b': n.s} %}{% endfor %}"
    "{{ n.s | string | length }}",
    "namespaces in namespaces": "{% set n = namespace(s=1) %}" + TWICE + "{% set n.s = namespace(a=n.s, b=n.s) %}"
    "{% endfor %}{{ [n.s, n.s] }}{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "text times a number": "{{ 'x' * 2000000000 }}",
    "list times a number": "{{ ([0] * 200000000) | length }}",
    "powers": "{% set n = namespace(s=3) %}" + TWICE + "{% set n.s = n.s * n.s %}{% endfor %}{{ n.s }}",
    "a power": "{{ 7 ** 99999999 }}",
    "a large number from a text": "{% set n = ('f' * 9999999) | int(0, 16) %}{{ (n // 3) % 7 }}",
    "ljust": "{{ 'x'.ljust(2000000000) }}",
    "rjust": "{{ 'x'.rjust(2000000000) }}",
    "zfill": "{{ 'x'.zfill(2000000000) }}",
    "center, the method": "{{ 'x'.center(2000000000) }}",
    "center, the filter": "{{ 'x' | center(2000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(2000000000) }}",
    "indent": "{{ 'x\n' | indent(2000000000, true) }}",
    "indent by a text": "{{ ('x\n' * 9999) | indent('y' * 99999, true) }}",
    "tojson with a margin": "{{ [1] | tojson(indent=100000000) }}",
    "tojson with long separators": "{{ ([1] * 99999) | tojson(separators=('y' * 99999, ':')) }}",
    "a width in %": "{{ '%2000000000d' % 1 }}",
    "a precision in %": "{{ '%.2000000000f' % 1 }}",
    "a starred width in %": "{{ '%*d' % (2000000000, 1) }}",
    "many widths in %": "{{ ('%99999d' * 9999) % (1,) * 9999 }}",
    "a width in the filter format": "{{ '%2000000000d' | format(1) }}",
    "a width in the method format": "{{ '{:2000000000}'.format(1) }}",
    "a nested width": "{{ '{:{}}'.format(1, 2000000000) }}",
    "a width in format_map": "{{ '{a:2000000000}'.format_map({'a': 1}) }}",
    "many fields": "{{ ('{0}' * 99999).format('x' * 99999) }}",
    "a remainder of a text": "{{ '%2000000000d' is even }}",
    "divisible text": "{{ '%2000000000d' is divisibleby 2 }}",
    "slices": "{{ 'x' | slice(100000000) | list | length }}",
    "slices, filled": "{{ [1] | slice(100000000, 'x') | list | length }}",
    "a batch, filled": "{{ [1] | batch(100000000, 'x') | list | length }}",
    "replace nothing": "{{ ('x' * 99999) | replace('', 'y' * 99999) }}",
    "replace all": "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    "join": "{{ (range(99999) | list) | join('y' * 99999) }}",
    "join, the method": "{{ ('y' * 99999).join('x' * 99999) }}",
    "many pieces": "{{ (' x' * 9999999).split() | length }}",
    "many letters": "{{ ('x' * 29999999) | list | length }}",
    "maps of maps": (
        "{% set n = namespace(s=range(99999)) %}"
        + TWICE
        + "{% set n.s = n.s | map('string') %}{% endfor %}{{ n.s | list | length }}"
    ),
    "maps that write lists": "{% set l = [1] * 99999 %}{{ ([l] * 99999) | map('string') | list | length }}",
    "selection in a list": "{% set l = range(99999) | list %}{{ l | select('in', l) | list | length }}",
    "sorting": "{% set l = ['x' * 99999] * 99999 %}{{ l | sort | length }}",
    "unique": "{% set l = ['x' * 99999] * 99999 %}{{ l | unique | list | length }}",
    "sum of lists": "{{ ([[1]] * 99999) | sum(start=[]) | length }}",
    "rounding": "{{ 1 | round(999999999, 'ceil') }}",
    "rounding a text": "{{ 'x' | round(9, 'ceil') }}",
    "urlencode": "{{ ('\U0001f600' * 4999999) | urlencode }}",
    "escape": "{{ ('&' * 29999999) | escape | length }}",
    "marked text times itself": "{% set m = ('&' * 9999) | escape %}{{ m % (1,) }}{{ m.join(['&' * 9999] * 9999) }}",
    "upper": "{% set t = 'x' * 9999999 %}{% for a in range(99999) %}{% set u = t.upper() %}{% endfor %}",
    "searching": "{% set t = 'x' * 9999999 %}{% for a in range(99999) %}{% if 'y' in t %}{% endif %}{% endfor %}",
    "counting": "{% set t = 'x' * 9999999 %}{% for a in range(99999) %}{% set u = t.count('xx') %}{% endfor %}",
    "comparing": (
        "{% set t, u = 'x' * 9999999, 'x' * 9999999 %}{% for a in range(99999) %}{% if t == u %}{% endif %}{% endfor %}"
    ),
    "slicing": "{% set t = 'x' * 9999999 %}{% for a in range(99999) %}{% set u = t[1:] %}{% endfor %}",
    "reading tests": "{% set t = 'x' * 9999999 %}{% for a in range(99999) %}{% if t is lower %}{% endif %}{% endfor %}",
    "recursion": "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "recursion, bounded in depth": (
        "{% macro f(n) %}{% if n < 90 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(0) }}"
    ),
    "macros without words": (
        "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set b = f(n - 1) %}{% endif %}{% endmacro %}{{ f(90) }}"
    ),
    "recursive loops": "{% set n = namespace(s=[]) %}" + TWICE + "{% set n.s = [n.s, n.s] %}{% endfor %}"
    "{% for a in n.s recursive %}{{ loop(a) }}{% endfor %}",
    "call blocks": (
        "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call f() %}" * 18 + "x" + "{% endcall %}" * 18
    ),
    "a huge range": "{% for a in range(2000000000) %}{% endfor %}",
    "set blocks": (
        "{% set n = namespace(s='x') %}"
        + TWICE
        + "{% set t %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = t %}{% endfor %}"
    ),
    "a filter block": "{% filter center(2000000000) %}x{% endfilter %}",
    "output": "{% set t = 'x' * 99999 %}{% for a in range(99999) %}{{ t }}{% endfor %}",
    "output in a macro": (
        "{% macro f() %}{% set t = 'x' * 99999 %}{% for a in range(99999) %}{{ t }}{% endfor %}{% endmacro %}{{ f() }}"
    ),
    "words of the template in a macro": (
        "{% macro f() %}{% for a in range(99999) %}" + "word " * 40000 + "{% endfor %}{% endmacro %}{{ f() }}"
    ),
    "kept texts": (
        "{% set n = namespace(s=[]) %}{% for a in range(99999) %}{% set n.s = n.s + ['x' * 99999] %}{% endfor %}"
    ),
    "many arguments": (
        "{% macro f() %}{{ varargs | length }}{% endmacro %}"
        "{% for a in range(9999) %}{{ f(*([1] * 99999)) }}{% endfor %}"
    ),
    "a payment by name": "{{ [-9999999999] | map('pay work') | list }}" + ENDLESS,
    "a payment of no number": "{{ ['nan' | float] | map('pay work') | list }}" + ENDLESS,
    "negative times": "{% set x = [0] * -999999999 %}" + ENDLESS,
    "negative widths": "{% set x = 'x' | center(-999999999) %}{% set y = 'x'.ljust(-999999999) %}" + ENDLESS,
    "a loop as a list": loop(loop("{% set x = loop | list %}")),
    "a search in a loop": loop(loop("{{ 'x' in loop }}")),
    "an object of a loop": loop(loop("{{ dict(loop) }}")),
    "a loop joined": loop(loop("{{ ''.join(loop) }}")),
    "a large number, written": "{% set n = ('f' * 9999999) | int(0, 16) %}{% for a in range(99999) %}"
    "{% set x = '%x' % n %}"
    "{% endfor %}",
    "a large number, negative": "{% set n = ('f' * 9999999) | int(0, 16) %}{% for a in range(99999) %}{% set x = -n %}"
    "{% endfor %}",
    "a number of many digits": "{{ ('1' * 9999999) | float }}",
    "lists in lists, as a name": "{% set n = namespace(s=[1]) %}" + TWICE + "{% set n.s = [n.s, n.s] %}"
    "{% endfor %}{{ 1 | attr(n.s) }}",
    "a deep key": "{% set n = namespace(s=(1,)) %}{% for a in range(49999) %}{% set n.s = (n.s,) %}{% endfor %}"
    "{{ [{}] | sort(attribute=n.s) }}",
    "a deep key, sought": "{% set n = namespace(s=(1,)) %}{% for a in range(49999) %}{% set n.s = (n.s,) %}{% endfor %}"
    "{{ n.s in {} }}{{ {}[n.s] }}{{ {}.get(n.s) }}{{ [n.s] | unique | list }}{{ [{}] | map(attribute=n.s) | list }}",
    "title": "{{ ('a ' * 9999999) | title | length }}",
    "wordcount": "{{ ('a ' * 9999999) | wordcount }}",
    "searching backwards": "{% set t = 'x' * 9999999 %}{{ t.rfind('y' + t[1:4999999]) }}",
    "searching twice": "{% set t, u = 'x' * 29999, 'x' * 50 + 'y' + 'x' * 40 %}"
    "{% for a in range(99999) %}{{ t.find(u) }}"
    "{% endfor %}",
    "stripping": "{% set t = 'x' * 4999999 %}{{ t.strip('y' * 999999 + 'x') }}{{ t | trim('y' * 999999 + 'x') }}",
    "many short texts": "{% set n = namespace(s=[]) %}{% set t = 'x' * 4000 %}{% for a in range(99999) %}"
    "{% set n.s = [n.s, t + 'x'] %}"
    "{% endfor %}",
    "many small objects": "{% set n = namespace(s=[]) %}{% for a in range(99999) %}"
    "{% set n.s = [n.s, {}, {}, {}, {}, {}, {}, {}] %}"
    "{% endfor %}",
    "many generators": "{% set n = namespace(s=[]) %}{% for a in range(99999) %}"
    "{% set n.s = [n.s, 'x' | map('e'), 'x' | map('e')] %}"
    "{% endfor %}",
    "lipsum": "{{ lipsum(n=99999999) }}",
    "encode": "{{ ('x' * 9999999).encode('idna') }}",
    "translate": "{{ ('x' * 99999).translate({120: 'y' * 99999}) }}",
    "to_bytes": "{{ (1).to_bytes(2000000000, 'big') }}",
    "dates": "{{ strftime_now('%Y' * 9999999) }}",
    "constants": "{{ ('x' | center(99999)) | replace('', 'x' | center(99999)) }}",
    "constants in autoescape": "{% autoescape 'x' | center(2000000000) %}{% endautoescape %}",
    "constants in conditions": "{% if 'x' | center(2000000000) %}{% endif %}",
    "defaults of macros": "{% macro f(a='x' * 2000000000) %}{% endmacro %}{{ f() }}",
    "cyclers": (
        "{% set c = cycler(*([1] * 99999)) %}{% for a in range(99999) %}"
        "{% for b in range(99999) %}{{ c.next() }}{% endfor %}{% endfor %}"
    ),
    "paths": (
        "{{ ([{}] * 9999) | map(attribute='a.' * 99999) | list }}{{ ([[]] * 9999) | sort(attribute='0.' * 9999) }}"
    ),
}


def run(source: str) -> dict[str, object]:
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    refused = None
    try:
        template = ChatTemplate(source, "m.gguf: chat template")
        template.render(
            [{"role": "user", "content": "go"}], add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
        )
    except GradusError as error:
        refused = str(error)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "refused": refused,
        "seconds": time.process_time() - begun,
        "grown": grown / (1 << 10 if sys.platform != "darwin" else 1 << 20),
    }


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MOST_SPACE, MOST_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    names = sys.argv[1:] or HOSTILE
    for name in names:
        print(json.dumps({"name": name, **run(HOSTILE[name])}), flush=True)
