"""The museum's slow wing: every engine is right and slow, its profile shows why, and half a repair does not pass."""

import cProfile
import io
import pstats
import re
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

import pytest

from gradus import phases
from gradus.cli import main
from gradus.course import museum
from gradus.course.museum import Exhibit, SlowLabel

WING = museum.exhibits(slow=True)
README = (phases.highest().path.parent / "museum" / "README.md").read_text(encoding="utf-8")

each = pytest.mark.parametrize("exhibit", WING, ids=lambda exhibit: exhibit.path.name)


def section(exhibit: Exhibit) -> str:
    """An engine's part of the page, from its heading to the next one."""
    found = re.search(rf"^### {exhibit.number}\. (.*?)$(.*?)(?=^### |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found is not None and found[1] == exhibit.symptom
    return found[2]


def printed(exhibit: Exhibit) -> list[str]:
    """The text blocks of an engine's part of the page: its symptom, and its profile."""
    return re.findall(r"^```text\n(.*?)^```$", section(exhibit), re.MULTILINE | re.DOTALL)


def shape(text: str) -> str:
    """A table without its measured times: a decimal fraction is #, a number of blanks is one."""
    return re.sub(r" +", " ", re.sub(r"\d+\.\d+", "#", text))


def last_column(table: str) -> list[float]:
    return [float(line.split()[-1]) for line in table.splitlines()[1:]]


# -- what the page says --------------------------------------------------------------------------------------------


@each
def test_its_page_shows_the_table_that_running_it_prints(exhibit: Exhibit):
    assert shape(printed(exhibit)[0]) == shape(museum.shown(exhibit.module("engine")))
    assert f"(../{phases.find(exhibit.label.phase).folder}/README.md)" in section(exhibit)


GROWS = {"waiting": 20, "pool": 5, "sizes": 2}  # the last row of the page's table, in first rows: at least
STAYS = {"grammar", "overlap"}  # what should have become less


@each
def test_the_page_s_table_is_the_symptom(exhibit: Exhibit):
    times = last_column(printed(exhibit)[0])
    assert times[-1] >= GROWS.get(exhibit.name, 0.7) * times[0]
    assert (exhibit.name in GROWS) != (exhibit.name in STAYS)


@each
def test_its_label_says_how_to_look_as_its_page_does(exhibit: Exhibit):
    label = exhibit.label
    assert isinstance(label, SlowLabel) and f"exercises/museum/{exhibit.name}.py" in label.look
    shown = re.search(r"^\$ (.*)$", section(exhibit), re.MULTILINE)
    assert shown is not None and shown[1].partition(" |")[0] == label.look.partition(" |")[0]
    assert len(label.seen) > 60 and "Here, a " in label.gave


CALLS = {  # engine: what its profile has too many calls of
    "waiting": ("urgency", 1_110_032),
    "grammar": ("__init__", 20),
    "sizes": ("launch", 20_150),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_profile_counts_what_the_page_and_the_label_say(name):
    exhibit, (function, calls) = museum.find(name, slow=True), CALLS[name]
    profile = cProfile.Profile()
    with redirect_stdout(io.StringIO()):
        profile.runcall(exhibit.module("engine").show)
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    file = exhibit.module("engine").__file__
    assert calls in [found[1] for (path, _, called), found in stats.items() if (path, called) == (file, function)]
    assert re.search(rf"^ *{calls} .*\({function}\)$", printed(exhibit)[1], re.MULTILINE)
    assert f"{calls:,}" in exhibit.label.seen


def test_torch_s_profile_of_the_pool_shows_the_copies():
    exhibit = museum.find("pool", slow=True)
    look = import_module("phases.museum.s03_pool.look")
    for table in (printed(exhibit)[1], look.profiled(exhibit.module("engine"))):
        heading, *rows = table.splitlines()
        assert heading.split() == ["operation", "self", "ms", "total", "ms", "MB", "taken", "calls"]
        assert {row.split()[0] for row in rows[:2]} == {"aten::cat", "aten::copy_"}
        taken = {row.split()[0]: row.split()[3:] for row in rows}
        assert taken["aten::cat"] == ["655.4", "40"] and taken["aten::copy_"][1] == "40"
    repaired = look.profiled(exhibit.module("fixed"))
    assert "aten::cat" not in repaired and "655.4" not in repaired


def test_samples_of_two_threads_show_who_waits_for_whom():
    exhibit = museum.find("overlap", slow=True)
    look = import_module("phases.museum.s05_overlap.look")
    waits = r"^host +(\d+)%  generate > launch > __len__ > value$"
    for table in (printed(exhibit)[1], look.sampled(exhibit.module("engine"), steps=40)):
        assert table.splitlines()[0].split() == ["thread", "samples", "stands", "at"]
        found = re.search(waits, table, re.MULTILINE)
        assert found is not None and int(found[1]) >= 15
        assert re.search(r"^device +\d+%  nothing to do$", table, re.MULTILINE)
    assert not re.search(waits, look.sampled(repaired_overlap(), steps=40), re.MULTILINE)


def repaired_overlap():
    """The file of the repaired engine, since samples name the functions of one file."""
    file = Path("exercises/museum/overlap.py").absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    engine = museum.find("overlap", slow=True).source
    file.write_text(engine.replace("if len(repeated):", "if True:"), encoding="utf-8")
    return museum.imported(file)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# -- half a repair does not pass -----------------------------------------------------------------------------------

Change = tuple[str, str]  # what to replace in the engine, and by what

SORT = "        self.waiting.sort(key=self.urgency)\n"
POP = "self.running.append(self.waiting.pop(0))"
APPEND = "        self.waiting.append(request)\n"
REMOVE = "        for requests in (self.waiting, self.running):\n"
KEY = "(request.priority, request.arrival, request)"
IMPORT = "from time import perf_counter\n"
HEAP: list[Change] = [
    (SORT, ""),
    (POP, "self.running.append(heappop(self.waiting)[-1])"),
    (IMPORT, f"{IMPORT}from heapq import heapify, heappop, heappush\n"),
]
GRAMMAR = "        if schema not in self.grammars:\n"
EQUAL = "@dataclass(eq=False)  # a key of a dict needs a hash"
KEPT = "            if len(self.grammars) > self.kept:\n                self.grammars.popitem(last=False)\n"
SCHEMA = 'self.grammar(Schema(request["choices"], request.get("prefix", "")))'
TUPLE = 'self.grammar(Schema(tuple(request["choices"]), request.get("prefix", "")))'
FROZEN: list[Change] = [(EQUAL, "@dataclass(frozen=True)"), (SCHEMA, TUPLE)]
STORE = (
    "        self.cache = torch.stack([old_keys.index_copy(0, rows, keys), old_values.index_copy(0, rows, values)])\n"
)
SIZES = "return [rows for rows in (1, 2, 4, *range(8, most + 1, 8)) if rows <= most]"
EAGER = "        for one in MODEL:\n            tokens = self.device.launch([one], tokens)\n        return tokens\n"
NOTHING = "        if len(repeated):  # where there is nothing to lower, save the kernel\n"
LOWERED = f"{NOTHING}            scores = self.device.run(lowered, scores, repeated, said)\n"

HALF: dict[str, dict[str, list[Change]]] = {
    "waiting": {
        "no order at all": [(SORT, "")],
        "a sort when a slot is free": [(SORT, f"        if len(self.running) < self.slots:\n    {SORT}")],
        "a sort at every arrival": [(SORT, ""), (APPEND, f"{APPEND}        self.waiting.sort(key=self.urgency)\n")],
        "a search for the most urgent one": [
            (SORT, ""),
            (POP, "self.running.append(self.waiting.pop(self.waiting.index(min(self.waiting, key=self.urgency))))"),
        ],
        "tuples that are sorted in every step": [
            (SORT, "        self.waiting.sort()\n"),
            (APPEND, f"        self.waiting.append({KEY})\n"),
            (POP, "self.running.append(self.waiting.pop(0)[-1])"),
            (REMOVE, "        self.waiting = [w for w in self.waiting if w[-1] is not request]\n"
                     "        for requests in (self.running,):\n"),
        ],
        "a heap that forgets arrivals": [
            *HEAP,
            (APPEND, "        heappush(self.waiting, (request.priority, id(request), request))\n"),
            (REMOVE, "        self.waiting = [w for w in self.waiting if w[-1] is not request]\n"
                     "        heapify(self.waiting)\n        for requests in (self.running,):\n"),
        ],
        "a heap with a hole": [
            *HEAP,
            (APPEND, f"        heappush(self.waiting, {KEY})\n"),
            (REMOVE, "        found = next((at for at, w in enumerate(self.waiting) if w[-1] is request), None)\n"
                     "        if found is not None:\n"
                     "            self.waiting[found] = self.waiting[-1]\n            self.waiting.pop()\n"
                     "        for requests in (self.running,):\n"),
        ],
        "a heap that keeps the canceled": [
            *HEAP,
            (APPEND, f"        heappush(self.waiting, {KEY})\n"),
            (REMOVE, "        for requests in (self.running,):\n"),
        ],
    },
    "grammar": {
        "the object's address": [(GRAMMAR, f"        schema = id(schema)\n{GRAMMAR}"),
                                 ("Grammar(schema, self.vocabulary)", "Grammar(kept, self.vocabulary)"),
                                 ("        schema = id(schema)\n", "        kept, schema = schema, id(schema)\n")],
        "the choices alone": [(GRAMMAR, f"        kept, schema = schema, tuple(schema.choices)\n{GRAMMAR}"),
                              ("Grammar(schema, self.vocabulary)", "Grammar(kept, self.vocabulary)")],
        "the choices sorted": [(GRAMMAR, f"        kept, schema = schema, (*sorted(schema.choices), 0, schema.prefix)\n"
                                         f"{GRAMMAR}"),
                               ("Grammar(schema, self.vocabulary)", "Grammar(kept, self.vocabulary)")],
        "the choices joined": [(GRAMMAR, f'        kept, schema = schema, (" ".join(schema.choices), schema.prefix)\n'
                                         f"{GRAMMAR}"),
                               ("Grammar(schema, self.vocabulary)", "Grammar(kept, self.vocabulary)")],
        "the whole request": [(SCHEMA, "self.grammar(body)"),
                              ("Grammar(schema, self.vocabulary)",
                               'Grammar(Schema(json.loads(schema)["choices"], json.loads(schema).get("prefix", "")), '
                               "self.vocabulary)")],
        "no limit": [*FROZEN, (KEPT, "")],
        "the oldest goes, in use or not": [*FROZEN, ("        self.grammars.move_to_end(schema)\n", "")],
        "all go when it is full": [*FROZEN, ("self.grammars.popitem(last=False)", "self.grammars.clear()"),
                                   ("        self.grammars.move_to_end(schema)\n        return self.grammars[schema]",
                                    "        return self.grammars.get(schema) or Grammar(schema, self.vocabulary)")],
    },
    "pool": {
        "keys in place, values not": [(STORE, "        old_keys.index_copy_(0, rows, keys)\n"
                                              "        self.cache[1] = old_values.index_copy(0, rows, values)\n")],
        "in place, and put together again": [(STORE, STORE.replace("index_copy(", "index_copy_("))],
        "in place, in a clone": [(STORE, "        self.cache = self.cache.clone()\n"
                                         "        self.cache[:, rows] = torch.stack([keys, values])\n")],
        "a mask over all rows": [(STORE, "        for old, new in ((old_keys, keys), (old_values, values)):\n"
                                         "            for row, one in zip(rows.tolist(), new):\n"
                                         "                mask = (torch.arange(len(old)) == row)[:, None]\n"
                                         "                torch.where(mask, one, old, out=old)\n")],
        "the same tensor, overwritten": [(STORE, STORE.replace("= torch.stack([", "[:] = torch.stack(["))],
        "one row for all": [(STORE, "        self.cache[:, rows[:1]] = torch.stack([keys, values])[:, :1]\n")],
        "a pool that grows": [
            ("torch.zeros(2, rows, WIDTH, dtype=torch.float64)", "torch.zeros(2, 0, WIDTH, dtype=torch.float64)"),
            ("list(range(rows))", "list(range(rows))[::-1]"),
            (STORE, "        while self.cache.shape[1] <= int(rows.max()):\n"
                    "            new = torch.zeros(2, 1, WIDTH, dtype=keys.dtype)\n"
                    "            self.cache = torch.cat([self.cache, new], dim=1)\n"
                    "        self.cache[:, rows] = torch.stack([keys, values])\n"),
        ],
    },
    "sizes": {
        "recorded when it is missed": [(EAGER, "        rows = len(tokens)\n"
                                               "        self.graphs[rows] = self.device.record(MODEL, rows)\n"
                                               "        return self.device.launch(self.graphs[rows], tokens)\n")],
        "a graph for every number": [(SIZES, "return list(range(1, most + 1))")],
        "rounded up": [(SIZES, "return [1, 2, 4, *range(8, most + 8, 8)]")],
        "only the largest": [(SIZES, "return [most]")],
        "what fits, and no more": [(EAGER, "        size = max(self.graphs)\n"
                                           "        return self.device.launch(self.graphs[size], tokens[:size])\n")],
        "two launches": [(EAGER, "        size = max(self.graphs)\n"
                                 "        return self.step(tokens[:size]) + self.step(tokens[size:])\n")],
        "the largest without its padding": [(SIZES, f"{SIZES[:-1]} or rows == most]"),
                                            (EAGER, EAGER.replace("MODEL", "MODEL[:-1]"))],
    },
    "overlap": {
        "nothing is lowered": [(LOWERED, "")],
        "only the value's name is changed": [(NOTHING, "        if repeated.value():\n")],
        "a look whether it is there": [(NOTHING, "        if not repeated.future.done() or len(repeated):\n")],
        "the host's own list": [
            ("        repeated = self.device.run(said_twice, said)\n", "        repeated = said_twice(self.known)\n"),
            ("        words: list[str] = []\n", "        words: list[str] = []\n        self.known = [0]\n"),
            ("                words.append(WORDS[flying.popleft().value()[-1]])\n",
             "                self.known = flying.popleft().value()\n"
             "                words.append(WORDS[self.known[-1]])\n"),
        ],
        "the wait moved to the end of the step": [
            (LOWERED, "        scores = self.device.run(lowered, scores, repeated, said)\n"),
            ("            flying.append(said)\n", "            flying.append(said)\n            said.value()\n"),
        ],
        "the model on the host": [
            ("        scores = self.device.run(score, said)\n", "        scores = score(said.value())\n"),
            (LOWERED, "        scores = self.device.run(lowered, scores, repeated, said)\n"),
        ],
    },
}  # fmt: skip

RIGHT: dict[str, dict[str, list[Change]]] = {
    "waiting": {
        "a queue for each priority": [
            (SORT, ""),
            (IMPORT, f"{IMPORT}from collections import defaultdict, deque\n"),
            ("self.waiting: list[Request] = []", "self.waiting = defaultdict(deque)"),
            (APPEND, "        self.waiting[request.priority].append(request)\n"),
            (REMOVE, "        for requests in (self.waiting[request.priority], self.running):\n"),
            ("while self.waiting and", "while any(self.waiting.values()) and"),
            (POP, "self.running.append(next(q for _, q in sorted(self.waiting.items()) if q).popleft())"),
        ],
        "a heap that is rebuilt for who hangs up": [
            *HEAP,
            (APPEND, f"        heappush(self.waiting, {KEY})\n"),
            (REMOVE, "        self.waiting = [w for w in self.waiting if w[-1] is not request]\n"
                     "        heapify(self.waiting)\n        for requests in (self.running,):\n"),
        ],
    },
    "grammar": {"a frozen schema": FROZEN,
                "the schema as JSON": [
                    (GRAMMAR, "        kept, schema = schema, json.dumps([schema.choices, schema.prefix])\n" + GRAMMAR),
                    ("Grammar(schema, self.vocabulary)", "Grammar(kept, self.vocabulary)")]},
    "pool": {"by an index": [(STORE, "        self.cache[:, rows] = torch.stack([keys, values])\n")]},
    "sizes": {"the last is cut": [(SIZES, "return [min(rows, most) for rows in (1, 2, 4, *range(8, most + 8, 8))]")]},
    "overlap": {"no test": [(LOWERED, "        scores = self.device.run(lowered, scores, repeated, said)\n")]},
}  # fmt: skip


def judged(name: str, changes: list[Change], file: Path) -> list[museum.Finding]:
    """Judge an engine after these changes. Each must find its place exactly once."""
    source = museum.find(name, slow=True).source
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    file.write_text(source, encoding="utf-8")
    return list(museum.judge(museum.find(name, slow=True), museum.imported(file)))


SLOW = {"a sort at every arrival"}  # takes seconds, and fails at what "a search for the most urgent one" fails at


def repairs(of: dict[str, dict[str, list[Change]]]) -> list:
    return [
        pytest.param(name, changes, id=f"{name}, {how}", marks=pytest.mark.stress if how in SLOW else ())
        for name in of
        for how, changes in of[name].items()
    ]


@pytest.mark.parametrize(("name", "changes"), repairs(HALF))
def test_half_a_repair_does_not_pass(name, changes, tmp_path):
    findings = judged(name, changes, tmp_path / f"{name}.py")
    failures = [finding.failure for finding in findings if finding.failure]
    assert failures and len(failures) < len(findings)
    mistyped = ("NameError", "AttributeError", "SyntaxError", "TypeError", "KeyError")
    assert not [failure for failure in failures if failure.startswith(mistyped)]


def test_each_engine_has_three_half_repairs_or_more():
    assert HALF.keys() == RIGHT.keys() == {exhibit.name for exhibit in WING}
    assert min(map(len, HALF.values())) >= 3


@pytest.mark.parametrize(("name", "changes"), repairs(RIGHT))
def test_another_right_repair_passes(name, changes, tmp_path):
    assert not [finding for finding in judged(name, changes, tmp_path / f"{name}.py") if finding.failure]


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_lists_the_wing_and_none_of_its_faults(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["museum", "--slow"]) == 0
    out = capsys.readouterr().out
    assert all(exhibit.symptom in out for exhibit in WING) and "gradus museum --slow 1" in out
    assert not [exhibit for exhibit in WING if exhibit.label.fault in out]


def test_from_the_curve_to_the_repair(capsys):
    assert main(["museum", "--slow", "4"]) == 0
    out = capsys.readouterr().out
    copy = Path("exercises/museum/sizes.py")
    assert "users" in out and WING[3].label.look in out and "gradus museum --slow 4 --check" in out
    assert main(["museum", "--slow", "4", "--check"]) == 1
    assert "✗ the largest batches are one launch" in capsys.readouterr().out
    copy.write_text(copy.read_text().replace(SIZES, f"{SIZES[:-1]} or rows == most] + [most]"))
    assert main(["museum", "--slow", "4", "--check"]) == 0
    out = capsys.readouterr().out
    assert f"python {copy}" in out and "gradus museum --slow 4 --solution" in out


def test_the_solution_says_what_the_profile_showed_and_what_the_repair_gave(capsys):
    assert main(["museum", "--slow", "overlap", "--solution"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    label = WING[4].label
    assert isinstance(label, SlowLabel) and all(" ".join(text.split()) in out for text in (label.seen, label.gave))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("6",), "a number from 1 to 5, as `gradus museum --slow` lists"),
        (("2", "--check"), "`gradus museum --slow 2` writes it"),
        (("slots",), "a number from 1 to 5"),
    ],
)
def test_a_mistake_gets_one_line_that_says_what_to_do(arguments, said, capsys):
    assert main(["museum", "--slow", *arguments]) == 2
    assert said in capsys.readouterr().err


@each
def test_a_copy_runs_as_a_script(exhibit: Exhibit):
    tail = exhibit.source.rstrip().splitlines()[-2:]
    assert tail == ['if __name__ == "__main__":', "    show()"]
