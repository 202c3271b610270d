"""Open tasks: every phase has one, its beginning scores 1.00, and what does not count is refused.

No engine here solves a task. Wrong, cheating and unchanged ones are measured, and a goal is reached with made-up
numbers.
"""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.course.open import attempt, judge, report
from gradus.course.open.attempt import Found
from gradus.course.open.declaration import Open, Refused
from gradus.course.open.guard import Guard
from gradus.course.open.meter import Meter
from gradus.course.open.workload import Ask, options, play, small_model
from gradus.course.student.ladder import Best
from gradus.models import Model
from gradus.sampling.sampler import Sampler

ROOT = Path(__file__).parents[2]
TASKS = [info.name for info in phases.available()]
ASKS = [Ask("a", (1, 2, 3), 5), Ask("b", (4, 5, 6, 7), 4, at=2)]


def task_of(phase: str) -> Open:
    info = phases.find(phase)
    if phase in ("p09", "p10") and find_spec("triton") is None:
        pytest.skip("Triton is for Linux alone")
    return attempt.task_of(info)


def beginning(task: Open, folder: Path, change=lambda source: source):
    """The file to begin with, as a module; change: applied to its source."""
    file = folder / "beginning.py"
    file.write_text(change(task.start), encoding="utf-8")
    return judge.load(file, f"beginning_{folder.name}")


def built(phase: str):
    """A phase's own `build`."""
    return phases.load(phase).build


def run(build, seed: int = 3, **settings):
    model = small_model(seed)
    return play(build, model, options(model, **({"max_sequences": 2} | settings)), ASKS, storage=True)


# -- every task ------------------------------------------------------------------------------------------------------


INTERPRETED = {"p09"}  # trials that need an interpreter of Triton, and so a process of their own
SMALLER: dict[str, dict[str, int]] = {
    "p02": {"REQUESTS": 12},
    "p03": {"REQUESTS": 16},
    "p04": {"REQUESTS": 16},
    "p05": {"REQUESTS": 40},
    "p08": {"WRITTEN": 60},
    "p10": {"LEVELS": 2, "LENGTH": 6},
}
"""Loads that show in a quarter of the time what these tasks count, by the constants of their open.py."""


@pytest.fixture
def load(monkeypatch) -> Callable[..., None]:
    """load("p02", REQUESTS=12): let the phase's trials have this load. load("p02"): that of SMALLER, if it has one."""

    def change(phase: str, **sizes: int) -> None:
        for name, size in (sizes or SMALLER.get(phase, {})).items():
            monkeypatch.setattr(phases.find(phase).module("open"), name, size)

    return change


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.stress)])
@pytest.mark.parametrize("phase", [name for name in TASKS if name not in INTERPRETED])
def test_a_beginning_is_measured_alike_twice_and_otherwise_with_another_seed(phase, whole, load, tmp_path):
    task = task_of(phase)
    if not whole:
        load(phase)
    module = beginning(task, tmp_path)
    first, again, other = (task.trial(module, seed) for seed in (5, 5, 6))
    counted = {name: value for name, value in first.items() if not (task.clocked and name == task.counts)}
    assert {task.counts, *task.bounds, *task.needs} <= first.keys() and first[task.counts] > 0
    assert counted == {name: again[name] for name in counted}
    assert first != other
    found = attempt.found(task, (5,), {"mine": [first], "base": [first]}, "")
    assert found.counts(task) and not found.reached(task), "an unchanged file counts"


@pytest.mark.parametrize("phase", TASKS)
def test_a_goal_is_beyond_the_beginning(phase):
    task = task_of(phase)
    assert not task.reached(1.0) and task.reached(task.reach)
    assert all(most >= 1 for most in task.bounds.values()) and all(0 < most < 1 for most in task.needs.values())
    assert task.trials >= 2


@pytest.mark.parametrize("phase", TASKS)
def test_a_beginning_is_written_as_our_own_code_is(phase):
    if find_spec("ruff") is None:
        pytest.skip("ruff is not installed")
    for command in (["check", "-"], ["format", "--check", "-"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command],
            input=task_of(phase).start,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def section(phase: str) -> str:
    lesson = (phases.find(phase).path / "README.md").read_text(encoding="utf-8")
    return lesson.partition("\n## An open task\n")[2]


@pytest.mark.parametrize("phase", TASKS)
def test_a_lesson_ends_with_its_open_task(phase):
    text = section(phase)
    assert " ".join(task_of(phase).goal.split()) in " ".join(text.split())
    assert f"```bash\ngradus check --open {phase}\n```" in text and "\n## " not in text
    assert len(re.findall(r"^- ", text, re.MULTILINE)) == 2


def test_the_page_lists_every_task_as_it_is_declared():
    page = (ROOT / "docs" / "open-tasks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(p\d\d)\]\((.*?)\) \| (.*) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    wanted = []
    for info in phases.available():
        task = task_of(info.name)
        wanted.append((info.name, f"../phases/{info.folder}/README.md#an-open-task", task.goal, task.unit, task.target))
    assert rows == wanted


# -- tokens ----------------------------------------------------------------------------------------------------------


def test_right_engines_pass_and_their_rows_are_counted():
    for phase in ("p01", "p03", "p04", "p06"):
        played = run(built(phase))
        assert played.rows == pytest.approx(3 + 4 + 4 + 3) and len(played.when("a")) == 5
    recomputed = run(built("p00"))
    assert recomputed.rows == pytest.approx(sum(range(3, 8)) + sum(range(4, 8)))


class FromATable(Sampler):
    """Answers with tokens that were right in some other run."""

    def _draw(self, logits, rows, *_):
        return torch.full((len(logits),), 7)


def test_tokens_from_a_table_are_refused(monkeypatch):
    monkeypatch.setattr("phases.p03_continuous_batching.engine.Sampler", FromATable)
    with pytest.raises(Refused, match=r"token \d of a is 7, and the model says \d+"):
        run(built("p03"))


def test_rounded_keys_are_refused_though_tokens_are_right():
    def rounded(model: Model, settings: EngineOptions):
        engine = built("p01")(model, settings)
        attention = engine.runner.attention
        attention.keys = [each.bfloat16() for each in attention.keys]
        inner, right = attention.attend, attention.keys

        def attend(layer, q, k, v, sinks=None):
            attention.keys = [each.float() for each in right]
            out = inner(layer, q, k, v, sinks)
            right[layer].copy_(attention.keys[layer])
            return out

        attention.attend = attend
        return engine

    with pytest.raises(Refused, match=r"something was rounded|the model says"):
        run(rounded)


def test_an_engine_that_stops_early_or_never_is_refused(monkeypatch):
    def short(model: Model, settings: EngineOptions):
        engine = built("p03")(model, settings)
        submit = engine.submit
        engine.submit = lambda request: (submit(request), engine.cancel(request.id))
        return engine

    with pytest.raises(Refused, match=r"got 0 tokens, and asked for 5"):
        run(short)

    monkeypatch.setattr("phases.p03_continuous_batching.scheduler.ContinuousBatching.schedule", lambda self: None)
    monkeypatch.setattr("gradus.course.open.workload.MOST_STEPS", 20)
    with pytest.raises(
        Refused, match=r"after 20 steps there is still work to do: a \(a prompt of 3 tokens\) has 0 of 5"
    ):
        run(built("p03"))


# -- meters and the guard --------------------------------------------------------------------------------------------


def test_the_meter_sees_rows_however_they_are_computed():
    model = small_model(0)
    x, meter = torch.randn(6, model.config.hidden_size), Meter(model)
    qkv = model.layers[0].qkv
    whole = qkv.weight.numel() * 6
    with meter:
        qkv(x)
        assert meter.multiplied == whole
        torch.cat([x[:4] @ qkv.weight.T, torch.mm(x[4:], qkv.weight.clone().T)])
        assert meter.multiplied == 2 * whole
        model.logits(x)
    assert meter.multiplied == 2 * whole


@pytest.mark.parametrize(
    "product",
    [
        lambda x, w: torch.einsum("nd,od->no", x, w),
        lambda x, w: torch.bmm(x.unflatten(0, (2, 3)), w.T.expand(2, -1, -1)).flatten(0, 1),
        lambda x, w: torch.stack([w @ row for row in x]),
        torch.inner,
        lambda x, w: torch.tensordot(x, w, dims=([1], [1])),
        lambda x, w: torch.cat([torch.einsum("nd,od->no", x, part) for part in w.chunk(2)], dim=1),
        lambda x, w: (x.unsqueeze(1) * w).sum(-1),
    ],
)
def test_a_product_of_any_other_form_is_counted_as_much(product):
    model = small_model(0)
    weight, x, meter = model.layers[0].qkv.weight, torch.randn(6, model.config.hidden_size), Meter(model)
    with meter, torch.inference_mode():
        out = product(x, weight)
    torch.testing.assert_close(out, x @ weight.T)
    assert meter.multiplied == 6 * weight.numel()


def test_numbers_that_a_file_takes_out_of_torch_are_refused_and_the_engine_s_are_not(tmp_path):
    source = (
        "import numpy as np\n\n\ndef array(x):\n    return np.asarray(x)\n\n\ndef numbers(x):\n    return x.numpy()\n"
        "\n\ndef values(x):\n    return x.tolist()\n"
    )
    module, x = judge.load(written(tmp_path, source), "takes_out"), torch.ones(3)
    with Meter(small_model(0)):
        for way, line in ((module.array, 5), (module.numbers, 9), (module.values, 13)):
            with pytest.raises(Refused, match=rf"line {line} of yours\.py takes numbers out of torch"):
                way(x)
            assert list(way(x.long())) == [1, 1, 1]  # positions and lengths are for schedulers to read
    assert module.values(x) == [1.0, 1.0, 1.0]
    assert run(built("p03")).rows > 0


def test_the_meter_counts_bytes_until_they_are_freed():
    meter = Meter(small_model(0), storage=True)
    with meter:
        kept = torch.empty(1000)
        view = kept.view(10, 100)[2:]
        torch.empty(500)
    assert (meter.live, meter.peak) == (4000, 6000)
    del kept
    assert meter.live == 4000 and len(view) == 8
    del view
    assert meter.live == 0


@pytest.mark.parametrize("name", ["Meter.count", "Guard.check"])
def test_the_guard_notices_a_changed_method(name, monkeypatch):
    guard = Guard()
    guard.check()
    monkeypatch.setattr({"Meter": Meter, "Guard": Guard}[name.partition(".")[0]], name.partition(".")[2], print)
    with pytest.raises(Refused, match=rf"gradus.course.open.*{name} was changed"):
        Guard.check(guard) if name != "Guard.check" else judge_guard(guard)


def judge_guard(guard: Guard) -> None:
    """The guard's own check, from the source: the method on the class has been replaced."""
    spec = importlib.util.find_spec("gradus.course.open.guard")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.Guard.check(guard)


def test_the_guard_notices_changed_code_and_constants(monkeypatch):
    from phases.p06_chunked_prefill import open as p06

    guard = Guard()
    monkeypatch.setattr(p06.worst_gap, "__code__", (lambda played, wanted: 0.0).__code__)
    with pytest.raises(Refused, match=r"phases.p06_chunked_prefill.open.worst_gap was changed"):
        guard.check()
    monkeypatch.undo()
    monkeypatch.setattr(p06, "FIXED", 0.0)
    with pytest.raises(Refused, match=r"open.FIXED was changed"):
        guard.check()


def test_a_file_that_changes_the_meter_does_not_count(load, tmp_path):
    load("p04")
    file = tmp_path / "yours.py"
    file.write_text(
        "from gradus.course.open.meter import Meter\nMeter.count = lambda *_: None\n"
        "from phases.p04_paged_cache.engine import build\n"
    )
    keep = Meter.count
    try:
        assert "Meter.count was changed" in judge.judge(task_of("p04"), file, [1])["error"]
    finally:
        Meter.count = keep


# -- what each task forbids ------------------------------------------------------------------------------------------


def test_p02_refuses_a_batch_that_others_join(load):
    load("p02")
    with pytest.raises(Refused, match="p03's idea"):
        task_of("p02").trial(SimpleNamespace(build=built("p03")), 1)


def test_p02_refuses_to_let_a_request_starve(load, tmp_path):
    load("p02", REQUESTS=24)
    newest = (
        "    def schedule(self):\n"
        "        newest = sorted(self.waiting, key=lambda one: -int(one.request.id[1:]))\n"
        "        self.waiting = type(self.waiting)(newest)\n"
        "        return super().schedule()\n"
    )
    module = beginning(
        task_of("p02"), tmp_path, lambda source: source.replace("\n\n\ndef build", f"\n\n{newest}\n\ndef build")
    )
    with pytest.raises(Refused, match=r"was passed by \d+ later requests, and 12 is the most"):
        task_of("p02").trial(module, 1)


def test_p04_bounds_memory_and_steps(load, tmp_path):
    load("p04")
    task = task_of("p04")
    base = task.trial(beginning(task, tmp_path), 1)
    more = beginning(
        task,
        tmp_path,
        lambda source: source.replace(
            "    cache = ", "    options = replace(options, cache_tokens=512)\n    cache = "
        ).replace("from gradus.config", "from dataclasses import replace\n\nfrom gradus.config", 1),
    )
    few = beginning(task, tmp_path, lambda source: source.replace("options.max_sequences)", "2)"))
    for module, bound in ((more, "bytes"), (few, "steps")):
        found = attempt.found(task, (1,), {"mine": [task.trial(module, 1)], "base": [base]}, "")
        assert found.ratio < 0.25 and bound in found.beyond(task) and not found.reached(task)


def test_p06_refuses_rows_that_the_plan_does_not_have():
    """Padding would hide work from the clock."""
    from phases.p06_chunked_prefill.open import cost

    seen = SimpleNamespace(step=SimpleNamespace(spans=[SimpleNamespace(count=3, start=0)]), rows=5.0)
    with pytest.raises(Refused, match=r"a step's plan has 3 tokens, and 5.0 were computed"):
        cost(seen)


@pytest.mark.parametrize(
    ("pack", "says"),
    [
        ("return [w]", "64.000 bits per weight"),
        ("global kept\n    kept = w\n    return [w[:0]]", "has no attribute 'clone'"),
        ("return [w.numpy()]", "must return tensors"),
    ],
)
def test_p07_refuses_what_is_no_packing(pack, says, tmp_path):
    source = f"kept = None\n\n\ndef pack(w, x):\n    {pack}\n\n\ndef unpack(parts):\n    return kept.clone()\n"
    facts = judge.in_turns(task_of("p07"), beginning(task_of("p07"), tmp_path), written(tmp_path, source), [1])
    assert says in facts["error"]


def test_p07_imports_the_other_files_of_a_folder_a_second_time_as_well(tmp_path):
    """A table that they keep between `pack` and `unpack` is not in the bytes."""
    (tmp_path / "kept_by_p07.py").write_text("KEPT = []\n")
    source = (
        "import kept_by_p07\n\n\ndef pack(w, x):\n    kept_by_p07.KEPT.append(w)\n    return [w[:0]]\n\n\n"
        "def unpack(parts):\n    return kept_by_p07.KEPT[-1]\n"
    )
    facts = judge.in_turns(task_of("p07"), beginning(task_of("p07"), tmp_path), written(tmp_path, source), [1])
    assert "IndexError" in facts["error"]


def written(folder: Path, source: str) -> Path:
    file = folder / "yours.py"
    file.write_text(source, encoding="utf-8")
    return file


def test_p08_refuses_a_drafter_that_writes():
    class Writing:
        def propose(self, asked):
            asked[0][0].tokens.append(1)
            return [[]]

    with pytest.raises(Refused, match="only reads"):
        task_of("p08").trial(SimpleNamespace(Drafter=Writing), 1)


def test_p11_refuses_another_language_and_a_lazy_automaton(tmp_path):
    for returned, says in (
        ("Dfa(right.steps, [True] * len(right.steps))", "is not the expression's"),
        ("Dfa([OrderedDict(step) for step in right.steps], right.accepting)", "complete when it is returned"),
    ):
        module = beginning(
            task_of("p11"),
            tmp_path,
            lambda source, returned=returned: (
                "from collections import OrderedDict\n"
                + source.replace("return subsets(nfa, last)", f"right = subsets(nfa, last)\n    return {returned}")
            ),
        )
        with pytest.raises(Refused, match=says):
            task_of("p11").trial(module, 1)


def test_p11_counts_all_threads_and_keeps_nothing_between_trials(tmp_path):
    """The automaton is built elsewhere, or only once: neither takes less than building it."""
    task = task_of("p11")
    module = beginning(task, tmp_path)
    task.trial(module, 1)  # as below: a first trial pays for more than it compiles
    base = task.trial(module, 1)["compiling"]
    for change in (
        ("return subsets(nfa, last)", "return ThreadPoolExecutor().submit(subsets, nfa, last).result()"),
        ("def dfa_of", "@lru_cache(None)\ndef dfa_of"),
    ):
        module = beginning(
            task,
            tmp_path,
            lambda source, change=change: (
                "from concurrent.futures import ThreadPoolExecutor\nfrom functools import lru_cache\n"
                + source.replace(*change)
            ),
        )
        task.trial(module, 1)
        assert task.trial(module, 1)["compiling"] > base / 3


def test_p12_refuses_a_rank_that_reads_the_whole_model(tmp_path):
    module = beginning(task_of("p12"), tmp_path, lambda _: "def cut(whole, exchange):\n    return whole\n")
    with pytest.raises(Refused, match="copies of its part"):
        task_of("p12").trial(module, 1)


HELD = (
    "\n\nclass Table(torch.nn.Module):\n    def __init__(self, rows):\n        super().__init__()\n        {held}\n\n"
)


@pytest.mark.parametrize(
    "held", ["self.rows = rows.detach()[:]", "self.rows = [rows.detach()]", "self.f = lambda: rows"]
)
def test_p12_finds_weights_that_are_no_parameters(held, tmp_path):
    module = beginning(
        task_of("p12"),
        tmp_path,
        lambda source: source.replace("\n\n@torch", f"{HELD.format(held=held)}\n@torch").replace(
            "return model.cut(whole, exchange)",
            "part = model.cut(whole, exchange)\n    part.table = Table(whole.head.weight)\n    return part",
        ),
    )
    with pytest.raises(Refused, match="copies of its part"):
        task_of("p12").trial(module, 1)


def test_p12_refuses_what_is_sent_in_fewer_bits(tmp_path):
    half = (
        "\n\nclass Half:\n    def __init__(self, inner):\n        self.inner, self.place = inner, inner.place\n\n"
        "    def gather(self, x):\n        return self.inner.gather(x.half()).float()\n\n"
    )
    module = beginning(
        task_of("p12"),
        tmp_path,
        lambda source: source.replace("\n\n@torch", f"{half}\n@torch").replace(
            "whole, exchange)\n", "whole, Half(exchange))\n"
        ),
    )
    with pytest.raises(Refused, match="something was rounded"):
        task_of("p12").trial(module, 1)


def test_p13_asks_for_more_than_refusing_what_is_late(tmp_path):
    task = task_of("p13")
    base = task.trial(beginning(task, tmp_path), 1)
    late = "return [one.number for one in waiting if now - one.at < 0.55]"
    module = beginning(task, tmp_path, lambda source: source.replace("return [one.number for one in waiting]", late))
    found = attempt.found(task, (1,), {"mine": [task.trial(module, 1)], "base": [base]}, "")
    assert 0.2 < found.ratio < 0.5 and found.counts(task) and not found.reached(task)


def test_p13_and_p14_refuse_answers_of_the_wrong_form():
    twice = SimpleNamespace(Policy=lambda: SimpleNamespace(order=lambda waiting, now: [waiting[0].number] * 2))
    with pytest.raises(Refused, match="each once"):
        task_of("p13").trial(twice, 1)
    with pytest.raises(Refused, match="must have 8 of the 64 experts"):
        task_of("p14").trial(SimpleNamespace(place=lambda seen, experts, ranks: [0] * experts), 1)


# -- scores ----------------------------------------------------------------------------------------------------------

TASK = Open("Halve it.", "rows", "rows", 0.5, lambda yours, seed: {}, "", bounds={"steps": 1.1})


@pytest.mark.parametrize(
    ("mine", "says"),
    [
        ({"rows": 49.0, "steps": 11.0}, "Reached."),
        ({"rows": 51.0, "steps": 10.0}, "Not yet."),
        ({"rows": 49.0, "steps": 11.5}, "a bound is exceeded"),
    ],
)
def test_a_goal_is_reached_within_its_bounds_alone(mine, says):
    found = attempt.found(TASK, (1,), {"mine": [mine], "base": [{"rows": 100.0, "steps": 10.0}]}, "")
    best = Best(0.49, True, "2026-05-01", "ab" * 32, "yours.py")
    lines = "\n".join(report.lines(TASK, found, best))
    assert says in lines and found.reached(TASK) == (says == "Reached.") and "0.49, reached, 2026-05-01" in lines


@pytest.mark.parametrize(
    ("mine", "counts", "says"),
    [
        ({"rows": 49.0, "steps": 8.0}, True, "Reached."),
        ({"rows": 51.0, "steps": 8.0}, True, "Not yet."),
        ({"rows": 49.0, "steps": 8.5}, True, "Not yet: the score is enough, and steps must become smaller."),
        ({"rows": 49.0, "steps": 10.5}, False, "1.05 of the beginning's, the goal is 0.80 or less; above 1.00 a score"),
    ],
)
def test_a_second_goal_is_needed_and_a_score_counts_without_it(mine, counts, says):
    task = Open("Halve it.", "rows", "rows", 0.5, lambda yours, seed: {}, "", needs={"steps": 0.8})
    found = attempt.found(task, (1,), {"mine": [mine], "base": [{"rows": 100.0, "steps": 10.0}]}, "")
    assert says in "\n".join(report.lines(task, found, None))
    assert found.counts(task) == counts and found.reached(task) == (says == "Reached.")


def test_the_ladder_prefers_an_attempt_that_reaches_the_goal():
    task = Open("Halve it.", "rows", "rows", 0.5, lambda yours, seed: {}, "", needs={"steps": 0.8})

    def found(rows: float, steps: float) -> Found:
        return attempt.found(
            task, (1,), {"mine": [{"rows": rows, "steps": steps}], "base": [{"rows": 1, "steps": 1}]}, ""
        )

    def best(ratio: float, reached: bool) -> Best:
        return Best(ratio, reached, "2026-05-01", "ab" * 32, "yours.py")

    assert found(0.45, 0.7).better(task, best(0.3, False)) and not found(0.3, 0.9).better(task, best(0.45, True))
    assert found(0.4, 0.7).better(task, best(0.45, True)) and not found(0.46, 0.7).better(task, best(0.45, True))
    assert found(0.9, 1.0).better(task, None)


def test_a_time_is_judged_by_the_median_of_its_trials():
    task = Open("Halve it.", "ms", "ms", 0.5, lambda yours, seed: {}, "", clocked=True)
    facts = {"mine": [{"ms": 4.0}, {"ms": 400.0}, {"ms": 5.0}], "base": [{"ms": 10.0}] * 3}
    found = attempt.found(task, (1, 2, 3), facts, "")
    assert found.ratio == 0.5 and "0.50 (0.40 to 40.00)" in "\n".join(report.lines(task, found, None))


def test_an_attempt_that_does_not_count_says_why():
    found = Found((7, 8), "token 1 is wrong")
    assert list(report.lines(TASK, found, None)) == ["does not count: token 1 is wrong", "seeds      7, 8"]


def test_all_seeds_of_a_check_follow_from_its_first():
    task = task_of("p06")
    seeds = attempt.seeds_of(task, 12)
    assert seeds == attempt.seeds_of(task, 12) and len(set(seeds)) == task.trials and seeds[0] == 12
    assert partial(attempt.seeds_of, task)(None) != partial(attempt.seeds_of, task)(None)
