"""Answers keep to their schema, a schema that comes again costs nothing, and the memory for grammars is bounded."""

import gc
import json
from collections.abc import Iterator
from typing import Any

CHOICES = ["yes", "no", "maybe"]


def test_an_answer_is_what_the_model_wants_if_the_schema_allows_it(engine: Any) -> None:
    runs = engine.Engine()
    for wish, right in (("no", "no"), ("maybe", "maybe"), ("never", "no"), ("who knows", "yes")):
        said = runs.answer(body(CHOICES, wish))
        assert said == right, f"the model wants {wish!r}, {CHOICES} are allowed, and the answer was {said!r}"


def test_the_order_of_the_choices_counts(engine: Any) -> None:
    runs = engine.Engine()
    for choices in (["yes", "no"], ["no", "yes"], ["yes", "no"]):
        said = runs.answer(body(choices, "zzz"))
        assert said == choices[0], f"the first of {choices} is the client's favorite, and the answer was {said!r}"


def test_a_prefix_is_part_of_the_schema(engine: Any) -> None:
    runs = engine.Engine()
    for prefix in ("", "answer ", "", "reply "):
        said = runs.answer(body(CHOICES, prefix + "no", prefix))
        assert said == prefix + "no", f"with the prefix {prefix!r} the answer was {said!r}"


def test_choices_that_read_alike_when_joined_are_not_the_same(engine: Any) -> None:
    runs = engine.Engine()
    for choices in (["a b", "c"], ["a", "b c"], ["a", "b", "c"]):
        said = runs.answer(body(choices, "zzz"))
        assert said == choices[0], f"the first of {choices} is the client's favorite, and the answer was {said!r}"


def test_a_schema_that_comes_again_is_not_compiled_again(engine: Any) -> None:
    vocabulary = Counted(engine.VOCABULARY)
    runs = engine.Engine(vocabulary)
    runs.answer(body(CHOICES, "no"))
    first = vocabulary.walks
    for _ in range(20):
        runs.answer(body(CHOICES, "no"))
    again = vocabulary.walks - first
    assert not again, f"the first request walks the vocabulary {first} times, and 20 more of the same {again} times"


def test_what_the_model_wants_is_not_part_of_the_schema(engine: Any) -> None:
    vocabulary = Counted(engine.VOCABULARY)
    runs = engine.Engine(vocabulary)
    runs.answer(body(CHOICES, "no"))
    first = vocabulary.walks
    for wish in ("yes", "maybe", "no"):
        runs.answer(body(CHOICES, wish))
    assert vocabulary.walks == first, f"{vocabulary.walks - first} walks for the same choices and other wishes"


def test_ever_new_schemas_do_not_fill_the_memory(engine: Any) -> None:
    runs = engine.Engine(engine.VOCABULARY[:60])
    before = grammars(engine)
    for number in range(3 * runs.kept):
        runs.answer(body([letters(number), "no"], "no"))
    kept = grammars(engine) - before
    assert kept <= runs.kept, f"{kept} grammars are in memory, where {runs.kept} may be"


def test_a_schema_in_use_outlives_others(engine: Any) -> None:
    vocabulary = Counted(engine.VOCABULARY[:60])
    runs = engine.Engine(vocabulary)
    runs.answer(body(CHOICES, "no"))
    again = 0
    for number in range(3 * runs.kept):
        runs.answer(body([letters(number), "no"], "no"))
        before = vocabulary.walks
        runs.answer(body(CHOICES, "no"))
        again += vocabulary.walks > before
    assert not again, f"a schema that every second request has was compiled again {again} times"


class Counted(list[str]):
    """A vocabulary. walks: how often somebody began to go through it."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        self.walks += 1
        return super().__iter__()


def body(choices: list[str], wish: str, prefix: str = "") -> str:
    return json.dumps({"choices": choices, "prefix": prefix, "wish": wish})


def letters(number: int) -> str:
    return "z" + "".join(chr(ord("a") + int(digit)) for digit in str(number))


def grammars(engine: Any) -> int:
    """Grammars in memory."""
    gc.collect()
    return sum(type(found).__name__ == engine.Grammar.__name__ for found in gc.get_objects())
