"""The probe reports what an engine does, changes nothing, and exposes a broken engine."""

import ast
from pathlib import Path

import pytest

from gradus.cache.inspection import PageCounts, TreeNode
from gradus.cache.pool import PagePool
from gradus.course.probe import EngineProbe, walk
from gradus.engine.engine import Engine
from gradus.engine.request import Request, SamplingParams
from tests.phases.conftest import PHASES, build_engine, limits_of, reached, tiny_model
from tests.phases.drive import SamplesOnes, run, submit

SHAPE = "tiny-llama"
PAGE = 4
TESTS = sorted((Path(__file__).parents[1] / "phases").glob("*.py"))


def ask(name: str, prompt, max_tokens: int = 4) -> Request:
    return Request.create(name, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True), limits_of(SHAPE))


def paged(phase: str, pages: int = 16, max_sequences: int = 3) -> Engine:
    return build_engine(phase, SHAPE, max_sequences, page_size=PAGE, cache_tokens=pages * PAGE)


def recorded(engine: Engine, *requests: Request) -> EngineProbe:
    """The requests, run to their ends before the probe, over a stand-in for the model."""
    engine.runner, engine.lag = SamplesOnes(), 0
    probe = EngineProbe(engine)
    probe.record()
    submit(engine, requests)
    while engine.has_work:
        engine.step()
    return probe


def test_a_step_tells_its_spans_its_arrivals_and_its_endings():
    probe = recorded(build_engine("p03", SHAPE, 2), ask("a", [5, 6], 1), ask("b", [7], 2), ask("c", [8, 9], 1))
    told = [[(span.id, span.slot, span.start, span.tokens) for span in step.spans] for step in probe.steps]
    assert told == [
        [(("a", 0), 0, 0, (5, 6)), (("b", 0), 1, 0, (7,))],
        [(("b", 0), 1, 1, (1,)), (("c", 0), 0, 0, (8, 9))],
    ]
    assert [step.admitted for step in probe.steps] == [(("a", 0), ("b", 0)), (("c", 0),)]
    assert [step.ended for step in probe.steps] == [{("a", 0): "length"}, {("b", 0): "length", ("c", 0): "length"}]
    assert [(step.number, step.tokens, step.committed) for step in probe.steps] == [(0, 3, True), (1, 3, True)]


def test_an_engine_without_pages_has_no_tables_no_counts_and_no_tree():
    for phase in (name for name in PHASES if name < "p04"):
        probe = recorded(build_engine(phase, SHAPE), ask("a", [5, 6]))
        assert {step.pages for step in probe.steps} == {None} and {step.tree for step in probe.steps} == {None}
        assert [step.tables for step in probe.steps] == [{("a", 0): ()}] * 4


@pytest.mark.parametrize("phase", reached("p04"))
def test_tables_and_counts_are_those_that_the_step_runs_with(phase):
    probe = recorded(paged(phase), ask("a", range(7), 3))
    lengths = [len(step.tables["a", 0][0]) for step in probe.steps]
    assert lengths == [2, 2, 3], "7, 8 and 9 positions are on 2, 2 and 3 pages of 4"
    assert [step.pages.held for step in probe.steps] == lengths
    assert all(sum(step.pages[1:]) == step.pages.total == 16 for step in probe.steps)
    assert probe.tables("a") == () and probe.running() == ()


@pytest.mark.parametrize("phase", reached("p05"))
def test_the_tree_is_nested_as_its_tokens_are(phase):
    shared = [*range(10, 18)]
    probe = recorded(paged(phase), ask("a", [*shared, 1, 2, 3, 4], 2), ask("b", [*shared, 5, 6, 7, 8], 2))
    (top,) = probe.tree()
    assert top.tokens == tuple(shared) and len(top.pages[0]) == 2
    assert sorted(child.tokens for child in top.children) == [(1, 2, 3, 4), (5, 6, 7, 8)]
    assert sum(len(node.pages[0]) for node in walk(probe.tree())) == probe.pages().idle == 4


def test_preempted_and_cancelled_sequences_are_told_apart():
    engine = paged("p04", pages=4, max_sequences=2)
    engine.runner = SamplesOnes()
    probe = EngineProbe(engine)
    probe.record()
    submit(engine, [ask("a", [5] * 4, 9), ask("b", [6] * 4, 9)])
    while not any(step.preempted for step in probe.steps):
        engine.step()
    assert probe.steps[-1].preempted == (("b", 0),) and probe.steps[-1].running == (("a", 0),)
    engine.cancel("a")
    engine.step()
    assert probe.steps[-1].ended == {("a", 0): "cancelled"} and probe.steps[-1].preempted == ()
    assert probe.steps[-1].admitted == (("b", 0),)


@pytest.mark.parametrize("phase", reached("p00"))
def test_recording_changes_no_output_and_leaves_nothing_behind(phase):
    requests = [ask(str(i), [3 + i] * (1 + 4 * i), 3 + i) for i in range(4)]
    watched = build_engine(phase, SHAPE)
    before = dict(vars(watched.scheduler))
    probe = EngineProbe(watched)
    probe.record()
    assert run(watched, requests) == run(build_engine(phase, SHAPE), requests)
    recorded_steps = len(probe.steps)
    assert recorded_steps == watched.metrics().steps
    probe.stop()
    assert vars(watched.scheduler).keys() == before.keys()
    run(watched, [ask("later", [5, 6])])
    assert len(probe.steps) == recorded_steps


def test_the_probe_shows_the_model_that_runs_which_may_be_a_phases_own():
    passed_in = tiny_model(SHAPE)
    assert EngineProbe(build_engine("p06", SHAPE)).model() is passed_in
    own = EngineProbe(build_engine("p07", SHAPE)).model()
    assert own is not passed_in and own.config is passed_in.config


def test_only_the_last_steps_are_kept_and_two_probes_do_not_record_at_once():
    engine = build_engine("p01", SHAPE)
    probe = EngineProbe(engine, kept=3)
    probe.record()
    with pytest.raises(ValueError, match="recorded already"):
        EngineProbe(engine).record()
    run(engine, [ask("a", [5], 8)])
    assert [step.number for step in probe.steps] == [5, 6, 7]


# -- other insides -----------------------------------------------------------------------------------------------------


class OtherCache:
    """A cache as a student may write it: nothing in common with the engine's but the protocol and the three methods.

    It has one mistake: every sequence gets the same pages.
    """

    def __init__(self) -> None:
        self.lengths: dict[tuple[str, int], int] = {}

    def fits(self, length, longest_span):
        return True

    def stored(self, id):
        return self.lengths.get(id, 0)

    def reserve(self, id, end):
        self.lengths[id] = end
        return True

    def table_change(self, id):
        return None

    def release(self, id):
        self.lengths.pop(id, None)

    def check(self):
        pass  # so that only the probe can show the mistake

    def tables(self, id):
        return (tuple(range(1, -(-self.stored(id) // PAGE) + 1)),)

    def pages(self):
        held = max((-(-length // PAGE) for length in self.lengths.values()), default=0)
        return PageCounts(8, held, 0, 8 - held)


def pages_of_two(probe: EngineProbe) -> set[int]:
    """Pages that two running sequences have at once."""
    shared: set[int] = set()
    for step in probe.steps:
        tables = [{page for table in tables for page in table} for tables in step.tables.values()]
        shared |= {page for i, pages in enumerate(tables) for other in tables[:i] for page in pages & other}
    return shared


def test_the_probe_shows_that_a_broken_cache_gives_one_page_to_two_sequences():
    engine = build_engine("p03", SHAPE, 2)
    engine.scheduler.cache = OtherCache()
    probe = recorded(engine, ask("a", range(6)), ask("b", range(3)))
    assert pages_of_two(probe) == {1, 2} and probe.steps[0].pages == PageCounts(8, 2, 0, 6)
    assert probe.tree() is None
    sound = recorded(paged("p04"), ask("a", range(6)), ask("b", range(3)))
    assert pages_of_two(sound) == set()


def test_a_pool_counts_its_pages_by_state():
    pool = PagePool(5, indexed={1})
    pool.take(3)
    pool.drop(1, 2)
    assert pool.counts() == PageCounts(total=5, held=1, idle=1, free=3)


def test_walking_a_tree_meets_parents_first():
    leaf = TreeNode((3,), ((3,),))
    tree = (TreeNode((1,), ((1,),), (TreeNode((2,), ((2,),), (leaf,)),)), TreeNode((4,), ((4,),)))
    assert [node.tokens for node in walk(tree)] == [(1,), (2,), (3,), (4,)]


def test_drafts_are_counted_until_nothing_is_guessed_any_more():
    repeating, engine = ask("a", [3, 1, 4] * 4, max_tokens=20), build_engine("p08", SHAPE)
    run(engine, [repeating])
    drafted, accepted = EngineProbe(engine).drafts()
    assert drafted >= accepted > 0
    EngineProbe(engine).guess_nothing()
    run(engine, [repeating])
    assert EngineProbe(engine).drafts() == (drafted, accepted)
    plain = EngineProbe(build_engine("p06", SHAPE))
    plain.guess_nothing()
    assert plain.drafts() is None


# -- the tests of phases look nowhere else -----------------------------------------------------------------------------

INSIDES = {"scheduler", "attention", "pool", "residents", "tensors", "storage", "latest", "model", "sampler"}
"""Parts and tensors of an engine, which only the probe may read."""


def reaches(source: str) -> list[str]:
    """Where a test looks inside an engine. It may put a stand-in in the runner's place, and call a runner's `run`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            in_runner = owner.endswith(".runner") and node.attr != "run"
            if in_runner or (node.attr in INSIDES and owner != "self" and not is_probe(node.value)):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def is_probe(owner: ast.expr) -> bool:
    """`probe` or `EngineProbe(...)`: what it shows by an inside's name (`model`) is public."""
    made = owner.func if isinstance(owner, ast.Call) else None
    return ast.unparse(owner) == "probe" or (made is not None and ast.unparse(made) == "EngineProbe")


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_the_tests_of_phases_look_at_engines_through_the_probe_alone(path):
    assert reaches(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "engine.scheduler.schedule()",
        "used = engine_of(phase).scheduler",
        "cache.residents['a'].tables",
        "EngineProbe(engine).cache.pool.free",
        "engine.runner.latest.record([3], tokens)",
        "engine.runner.plans",
        "engine.runner.model",
        "runner.model.logits(hidden)",
    ],
)
def test_looking_inside_is_noticed(line):
    assert reaches(line)


def test_what_is_public_may_be_used():
    assert reaches("engine.step(); engine.runner = Device(); probe.tables('a'); self.runner.run(plan)") == []
    assert reaches("model = EngineProbe(engine).model(); probe.model().logits(hidden)") == []
