"""What the scheduler saves itself in a steady decode: nobody who writes a scheduler is asked for it."""

import pytest

from gradus.engine.plan import Span
from gradus.engine.sequence import Output
from tests.scheduling.replica import ask
from tests.scheduling.world import World


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("shared", [False, True])
def test_the_cache_is_asked_for_a_page_only_when_a_decode_enters_one(monkeypatch, lag, shared):
    world = World(pages=32, shared=shared, lag=lag)
    for name in ("a", "b"):
        world.add(ask(name, 4, 14))
    world.step()
    asked, reserve, next_page = [], world.cache.reserve, world.cache.next_page
    monkeypatch.setattr(world.cache, "reserve", lambda id, end: asked.append(end) or reserve(id, end))
    monkeypatch.setattr(world.cache, "next_page", lambda who, end: asked.append(end) or next_page(who, end))
    for end in range(5, 17):
        world.step()
        assert world.cache.stored(("a", 0)) == end, "what is stored is known at any time"
    assert asked == [5, 5, 9, 9, 13, 13], "of 4 positions each"


@pytest.mark.parametrize("lag", [0, 1])
def test_a_decodes_span_and_output_have_every_field(lag):
    """They are made without their constructors, so a field that is forgotten would be missing."""
    world = World(pages=32, lag=lag)
    world.add(ask("a", 3, 9))
    outputs = [world.engine.step() for _ in range(4)][-1]
    (span,), (output,) = world.runner.plan.spans, outputs
    assert span == Span(span.sequence, 0, 5, span.tokens, 1, None)
    assert output == Output("a", 0, output.tokens) and len(output.tokens) == 1
