"""What an engine is made of is spared by Python's collector and still freed; an importer's collector is left alone."""

import gc
import weakref

import pytest

from gradus import LLM, SamplingParams
from gradus.garbage import spare_what_stays


class Node:
    def __init__(self) -> None:
        self.itself = self  # which reference counts cannot free


def test_what_is_there_is_spared_until_another_engine_is_built():
    node = Node()
    kept = weakref.ref(node)
    try:
        spare_what_stays()
        assert gc.get_freeze_count() > 0
        del node
        gc.collect()
        assert kept() is not None  # out of sight
        spare_what_stays()
        assert kept() is None
    finally:
        gc.unfreeze()


def test_a_step_of_256_decodes_is_committed_before_the_young_are_looked_through():
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        spare_what_stays()
        assert gc.get_threshold()[0] > 4 * 256, "a span, a result, its tokens and an output each"
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@pytest.mark.parametrize("phase", ["p01", None])
def test_building_an_llm_leaves_the_importers_collector_alone(phase):
    before = gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()
    llm = LLM("random:tiny-llama", phase=phase, device="cpu", dtype="float32", max_sequences=2)
    llm.generate("a", SamplingParams(max_tokens=2))
    assert (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()) == before
