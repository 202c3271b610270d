"""The books of a scheduler that pages: what must hold between any two calls, whoever made them and in which order."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradus.scheduling.batching import PagedBatching


def check_books(scheduler: "PagedBatching") -> None:
    """Assert it of queue, slots, pages and plans. Every live sample is in exactly one place."""
    scheduler.waiting.check()
    running, cache = scheduler.running, scheduler.cache
    slots = sorted([sequence.slot for sequence in running] + scheduler.free_slots)
    assert slots == list(range(scheduler.max_sequences)), "a slot is lost, or taken twice"
    places = [*running, *scheduler.waiting, *scheduler.siblings]
    live = [sequence for samples in scheduler.requests.values() for sequence in samples.values()]
    assert len(places) == len(live) == scheduler.active_count + scheduler.waiting_count
    assert set(places) == set(live), "a sample is nowhere, or lives on after its end"
    assert all(sequence.slot == -1 and not sequence.decoding for sequence in (*scheduler.waiting, *scheduler.siblings))
    assert set(cache.residents) == {sequence.id for sequence in running}, "pages of who does not run"
    under_way = scheduler.issued - scheduler.committed
    assert under_way >= 0
    for sequence in running:
        known, planned, stored = len(sequence.tokens), sequence.planned, cache.stored(sequence.id)
        assert known <= planned <= min(sequence.longest, known + under_way), "planned too far"
        if sequence.decoding and planned < sequence.longest:
            assert (planned == known) == (under_way == 0), "it decodes, and is not in every plan"
        assert (stored == planned - 1) if sequence.decoding else (1 <= stored < known == planned), (
            "it decodes, and its prompt is not stored"
        )
