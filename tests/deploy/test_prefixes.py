"""A prompt's beginning as hashes: equal where beginnings are equal, and no further."""

import json

import pytest

from gradus.deploy.prefixes import (
    BLOCK,
    LARGEST_BODY,
    MOST_BLOCKS,
    MOST_ITEMS,
    RecentPrefixes,
    block_hashes,
    prompt_hashes,
)

SECRET = b"s" * 32


def shared(one, other):
    """Blocks at the beginning with equal hashes."""
    return next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


def hashes(salt="", secret=SECRET, **body):
    return prompt_hashes(json.dumps(body).encode(), secret, salt)


def test_hashes_agree_up_to_the_block_in_which_texts_differ():
    one, other = "a" * BLOCK * 3 + "b" * BLOCK, "a" * BLOCK * 3 + "c" * BLOCK
    assert len(block_hashes(one, SECRET)) == 4
    assert shared(block_hashes(one, SECRET), block_hashes(other, SECRET)) == 3


def test_a_block_that_recurs_after_another_beginning_has_another_hash():
    one, other = block_hashes("a" * BLOCK + "c" * BLOCK, SECRET), block_hashes("b" * BLOCK + "c" * BLOCK, SECRET)
    assert not set(one) & set(other)


def test_only_whole_blocks_count_and_at_most_so_many():
    assert len(block_hashes("a" * (2 * BLOCK - 1), SECRET)) == 1
    assert block_hashes("a" * (BLOCK - 1), SECRET) == ()
    assert len(block_hashes("a" * BLOCK * (MOST_BLOCKS + 5), SECRET)) == MOST_BLOCKS


def test_a_conversation_that_goes_on_keeps_its_hashes():
    turns = [{"role": "user", "content": "x" * 2000}, {"role": "assistant", "content": "y" * 2000}]
    first, second = hashes(messages=turns[:1]), hashes(messages=[*turns, {"role": "user", "content": "more"}])
    assert shared(first, second) == len(first) > 6
    assert len(second) > len(first)


def test_the_order_of_fields_and_the_sampling_do_not_matter():
    prompt = "p" * 1000
    assert hashes(prompt=prompt, model="m", temperature=1) == hashes(model="m", prompt=prompt) != ()


@pytest.mark.parametrize("changed", [{"salt": "key"}, {"secret": b"t" * 32}, {"cache_salt": "mine"}])
def test_another_sender_secret_or_salt_shares_nothing(changed):
    prompt = "p" * 1000
    assert not set(hashes(prompt=prompt)) & set(hashes(prompt=prompt, **changed))


BEGINNING = b'{"prompt": "' + b"p" * 2 * BLOCK + b'", "x": '


@pytest.mark.parametrize(
    ("filling", "largest"),
    [
        (lambda size: b'"' + b"a" * size + b'"', LARGEST_BODY - len(BEGINNING) - 3),
        (lambda size: b"[" + b"[]," * size + b"0]", MOST_ITEMS // 2 - 2),
        (lambda size: b"[" * size + b"]" * size, 900),
        (lambda size: b"[" + b"1," * size + b"0]", MOST_ITEMS - 3),
    ],
    ids=["bytes", "lists", "nested", "numbers"],
)
def test_a_body_that_takes_long_to_parse_is_routed_by_load_alone(monkeypatch, filling, largest):
    assert len(prompt_hashes(BEGINNING + filling(largest) + b"}", SECRET)) == 2
    if largest != 900:  # deeper nesting ends the parser early by itself
        monkeypatch.setattr("gradus.deploy.prefixes.json.loads", lambda body: pytest.fail("the body is parsed"))
    assert prompt_hashes(BEGINNING + filling(16 * largest) + b"}", SECRET) == ()


def test_the_two_salts_cannot_be_exchanged():
    prompt = "p" * 1000
    assert hashes(salt="a", prompt=prompt, cache_salt="b") != hashes(salt="b", prompt=prompt, cache_salt="a")


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000, b'{"temperature": 1}'])
def test_a_body_without_a_prompt_has_no_hashes(body):
    assert prompt_hashes(body, SECRET) == ()


def test_half_a_surrogate_pair_is_hashed_like_any_character():
    assert len(prompt_hashes(b'{"prompt": "\\ud800' + b"x" * 600 + b'"}', SECRET)) == 2


def test_the_least_recent_hashes_are_forgotten_first():
    recent = RecentPrefixes(most=4)
    recent.add((1, 2))
    recent.add((3, 4))
    recent.add((1, 2))
    recent.add((5, 6))
    assert sorted(recent.published()) == [1, 2, 5, 6]
    assert recent.matched((1, 2, 3)) == 2 and recent.matched((3, 1)) == 0


def test_a_prompt_loses_its_end_before_its_beginning():
    recent = RecentPrefixes(most=3)
    recent.add((1, 2, 3, 4, 5))
    assert recent.matched((1, 2, 3, 4, 5)) == len(recent) == 3
