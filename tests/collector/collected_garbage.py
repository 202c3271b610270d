"""Python's collector spares an engine's parts, and still frees them when the engine is gone."""

import gc
import weakref

import pytest

from gradus import LLM, SamplingParams
from gradus.garbage import see_all_of_earlier_engines, spare_what_stays
from tests.server.conftest import running


class Node:
    def __init__(self) -> None:
        self.itself = self  # which reference counts cannot free


def test_what_is_there_is_spared_until_another_engine_is_built():
    owner, node = Node(), Node()
    kept = weakref.ref(node)
    try:
        spare_what_stays(owner)
        assert gc.get_freeze_count() > 0
        del node
        gc.collect()
        assert kept() is not None  # out of sight
        spare_what_stays(owner)
        assert kept() is None
    finally:
        gc.unfreeze()


def test_an_engine_that_is_about_to_load_gets_the_memory_of_earlier_ones():
    owner, node = Node(), Node()
    kept = weakref.ref(node)
    try:
        spare_what_stays(owner)
        del node
        see_all_of_earlier_engines()
        assert kept() is None
    finally:
        gc.unfreeze()


def test_a_step_of_256_decodes_is_committed_before_the_young_are_looked_through():
    before, owner = gc.get_threshold(), Node()
    try:
        gc.set_threshold(700, 10, 10)
        spare_what_stays(owner)
        assert gc.get_threshold()[0] > 4 * 256, "a span, a result, its tokens and an output each"
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def tiny(phase=None, **settings) -> LLM:
    return LLM("random:tiny-llama", phase=phase, device="cpu", dtype="float32", max_sequences=2, **settings)


@pytest.mark.parametrize("phase", ["p01", None])
def test_an_llm_spares_what_is_alive_until_it_is_gone(phase):
    llm = tiny(phase)
    llm.generate("a", SamplingParams(max_tokens=2))
    frozen = gc.get_freeze_count()
    assert frozen > 50_000, "torch alone has more"
    engine = weakref.ref(llm.engine)
    del llm
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert engine() is None, "what it held in cycles can be freed"


def test_a_server_keeps_the_core_alone_and_stays_spared():
    core = tiny().core
    gc.collect()
    assert gc.get_freeze_count() > 0
    del core
    assert gc.get_freeze_count() == 0


def test_a_servers_front_end_spares_what_is_alive():
    """Its call is counted: engines of earlier tests that end meanwhile undo what it did."""
    calls = []
    with pytest.MonkeyPatch.context() as patch:  # over before the `collector` fixture freezes the heap again
        patch.setattr(gc, "freeze", lambda: calls.append("freeze"))
        with running():
            assert calls


@pytest.mark.parametrize("phase", ["p01", None])
def test_without_gc_freeze_building_an_llm_leaves_the_programs_collector_alone(phase):
    before = gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()
    llm = tiny(phase, gc_freeze=False)
    llm.generate("a", SamplingParams(max_tokens=2))
    assert (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()) == before
