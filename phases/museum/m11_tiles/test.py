"""Every row is translated, whatever their number, in tiles that are as full as they can be."""

from typing import Any


def mixed(engine: Any, prompt: str) -> str:
    return " ".join(engine.Mixture().forward(prompt.split()))


def test_a_short_prompt_is_translated(engine: Any) -> None:
    found = mixed(engine, "the cat sees a dog")
    assert found == "le chat voit un chien", f"the answer is {found!r}"


def test_every_word_of_a_long_prompt_is_translated(engine: Any) -> None:
    for count in range(2 * engine.TILE + 2):
        found = engine.Mixture().forward(["the"] * count)
        assert found == ["le"] * count, f"of {count} times 'the', {found.count('the')} were not translated"


def test_each_word_is_translated_by_its_own_expert(engine: Any) -> None:
    words = [*engine.NOUNS, *engine.OTHERS] * 3
    wanted = [(engine.NOUNS | engine.OTHERS)[word] for word in words]
    found = engine.Mixture().forward(words)
    wrong = [word for word, right, got in zip(words, wanted, found, strict=True) if right != got]
    assert not wrong, f"of {len(words)} words, these came out wrong: {' '.join(wrong)}"


def test_an_unknown_word_stays_as_it_is(engine: Any) -> None:
    found = mixed(engine, "the cat sees Ben")
    assert found == "le chat voit Ben", f"the answer is {found!r}"


def test_an_expert_runs_once_per_tile(engine: Any) -> None:
    for count in range(1, 3 * engine.TILE + 1):
        mixture = engine.Mixture()
        mixture.forward(["the"] * count)
        tiles, needed = mixture.experts[1].tiles, -(-count // engine.TILE)
        assert len(tiles) == needed, f"{count} rows are {needed} tiles; the expert ran on {tiles}"


def test_an_expert_without_rows_does_not_run(engine: Any) -> None:
    mixture = engine.Mixture()
    mixture.forward(["cat"] * 5)
    tiles = mixture.experts[1].tiles
    assert not tiles, f"five nouns have no work for the other expert, which ran on {tiles}"
