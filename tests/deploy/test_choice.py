"""The router's choice: the longest known prefix, unless the load is too uneven."""

import itertools
import random

from gradus.deploy.choice import OFFER_S, Choice
from gradus.deploy.prefixes import BLOCK, block_hashes

A, B, C = "ABC"
PROMPT = (1, 2, 3, 4)


def loaded(choice, replica, requests, start=0):
    for number in range(requests):
        choice.begin(replica, f"{replica}{start + number}", ())


def test_the_replica_with_the_longest_known_prefix_is_preferred():
    choice = Choice()
    choice.publish(A, 1, (1, 2))
    choice.publish(B, 1, (1, 2, 3))
    assert choice.ranked([A, B, C], PROMPT) == [B, A, C]


def test_a_later_block_does_not_count_without_those_before_it():
    choice = Choice()
    choice.publish(A, 1, (2, 3, 4))
    choice.publish(B, 1, (1, 2))
    assert choice.matched(A, PROMPT) == 0
    assert choice.ranked([A, B], PROMPT)[0] == B


def test_a_short_common_beginning_yields_to_load():
    choice = Choice(least_share=0.3)
    choice.publish(A, 1, (1,))
    loaded(choice, A, 1)
    assert choice.ranked([A, B], PROMPT)[0] == B  # 1 of 4 blocks
    assert choice.ranked([A, B], PROMPT[:3])[0] == A  # 1 of 3


def test_beyond_the_imbalance_the_least_loaded_is_chosen():
    choice = Choice(max_imbalance=3)
    choice.publish(A, 1, PROMPT)
    loaded(choice, A, 3)
    assert choice.ranked([A, B], PROMPT)[0] == A
    loaded(choice, A, 1, start=3)
    assert choice.ranked([A, B], PROMPT)[0] == B
    choice.end(A, "A0")
    assert choice.ranked([A, B], PROMPT)[0] == A


def test_of_equal_matches_the_least_loaded_is_chosen():
    choice = Choice()
    for replica in (A, B):
        choice.publish(replica, 1, PROMPT)
    loaded(choice, A, 2)
    assert choice.ranked([A, B], PROMPT) == [B, A]


def test_a_request_that_ends_twice_or_was_never_sent_counts_once_or_not():
    choice = Choice()
    loaded(choice, A, 2)
    for name in ("A0", "A0", "refused"):
        choice.end(A, name)
    assert choice.load(A) == 1
    choice.end(B, "B0")
    assert choice.load(B) == 0


def test_requests_of_a_burst_count_before_they_are_taken():
    choice = Choice()
    chosen = []
    for number in range(4):
        chosen.append(choice.ranked([A, B], ())[0])
        choice.offer(chosen[-1], str(number), (), now=0.0)
    assert chosen == [A, B, A, B]
    choice.begin(A, "0", ())
    choice.offer(B, "2", (), now=0.0)  # A had no room
    assert (choice.load(A), choice.load(B)) == (1, 3)


def test_an_offer_that_nobody_takes_lapses():
    choice = Choice()
    choice.offer(A, "1", PROMPT, now=0.0)
    assert choice.load(A) == 1 and choice.matched(A, PROMPT) == 4
    choice.offer(B, "2", (), now=OFFER_S)
    assert (choice.load(A), choice.load(B)) == (0, 1)


def test_what_was_sent_is_known_until_the_replica_publishes():
    choice = Choice()
    choice.begin(A, "1", PROMPT)
    assert choice.matched(A, PROMPT) == 4
    choice.publish(A, 1, (1, 2))
    assert choice.matched(A, PROMPT) == 2


def test_a_version_seen_before_does_not_erase_what_was_sent_since():
    choice = Choice()
    choice.publish(A, 1, (9,))
    choice.begin(A, "1", PROMPT)
    choice.publish(A, 1, (9,))
    assert choice.matched(A, PROMPT) == 4


def test_a_replica_that_has_gone_is_forgotten():
    choice = Choice()
    choice.begin(A, "1", PROMPT)
    choice.publish(A, 1, PROMPT)
    choice.keep([B])
    assert choice.matched(A, PROMPT) == choice.load(A) == 0


def test_hits_on_shared_prefixes_reach_nine_tenths_of_the_best_possible():
    """20 documents with 10 questions each, in random order, on three replicas; least loaded alone misses far more."""
    documents = [f"{number:04d}" * (BLOCK * 8 // 4) for number in range(20)]
    requests = [(document, question) for document in documents for question in range(10)]
    random.Random(0).shuffle(requests)
    best = sum(len(block_hashes(document, b"")) for document in documents) * 9

    def hits(least_share):
        choice, known, found = Choice(least_share=least_share), {A: set(), B: set(), C: set()}, 0
        running = []
        for number, (document, question) in enumerate(requests):
            hashes = block_hashes(document + f"{question}" * BLOCK, b"")
            chosen = choice.ranked([A, B, C], hashes)[0]
            found += sum(1 for _ in itertools.takewhile(known[chosen].__contains__, hashes))
            known[chosen].update(hashes)
            choice.begin(chosen, str(number), hashes)
            running.append((chosen, str(number)))
            if len(running) > 6:
                choice.end(*running.pop(0))
        return found / best

    assert hits(least_share=0.3) >= 0.9
    assert hits(least_share=2.0) < 0.9  # no prefix ever outweighs the load
