"""Drafts looked up in the text, judged by the tokens that came and without verifying any."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gradus.engine.plan import REJECTED, UNDRAFTED, Decodes
from gradus.kernels.step.ngram_reference import look_up
from gradus.scheduling.hindsight import IN_A_ROW, MOST_READ, Hindsight, Text

SAID = [5, 6, 7, 8, 9, 1, 2, 5, 6]


def decodes(*texts: list[int], drafts=()) -> Decodes:
    owners = np.empty(len(texts), object)
    owners[:] = [SimpleNamespace(tokens=text) for text in texts]
    slots = np.arange(len(texts))
    return Decodes(slots, slots, slots, drafts=np.array(drafts, np.int64), owners=owners)


def column(*tokens: int) -> np.ndarray:
    return np.array(tokens).reshape(-1, 1)


def taken(hindsight: Hindsight, slots: int = 1) -> list[list[int]]:
    """Steps, found and right of each slot, as long as none has begun to copy."""
    steps, found, guesses, right = hindsight.take(np.arange(slots))
    assert (found == guesses).all()
    return np.array([steps, found, right]).T.tolist()


def test_a_guess_is_the_token_after_the_last_time_that_the_newest_two_occurred():
    hindsight = Hindsight()
    for token in (7, 8, 3, 4):  # two guesses are right, the third is wrong, and for the last one nothing is found
        hindsight.judge(decodes(SAID), column(token), [])
    assert taken(hindsight) == [[4, 3, 2]]
    assert taken(hindsight) == [[0, 0, 0]], "each step counts once"


@pytest.mark.parametrize("copies", [0.0, 0.9, 1.0])
def test_it_guesses_as_the_drafter_does(copies):
    """Not always: the drafter prefers the longest agreement. But it finds as much, and is right as often."""
    draw = np.random.default_rng(2)
    said = draw.integers(0, 60, 80).tolist()
    text, drafts, guesses, tokens = Text(said), [], [], []
    for number in range(160):
        drafts.append(int(look_up(torch.tensor([said]), torch.tensor([len(said)]), 1)[0, 0]))
        guesses.append(text.guess)
        tokens.append(said[number] if draw.random() < copies else int(draw.integers(0, 60)))
        said.append(tokens[-1])
        text.extend(tokens[-1:])
    drafts, guesses, tokens = map(np.array, (drafts, guesses, tokens))
    assert ((drafts >= 0) == (guesses >= 0)).all()
    assert (drafts == guesses).mean() > 0.95
    assert abs((drafts == tokens).sum() - (guesses == tokens).sum()) <= 5


def test_all_tokens_of_a_step_belong_to_the_text_and_only_steps_without_drafts_are_judged():
    hindsight, drafted = Hindsight(), decodes(SAID, drafts=[3])
    hindsight.judge(drafted, np.array([[7, 8, REJECTED, UNDRAFTED]]), [])
    assert taken(hindsight) == [[0, 0, 0]]
    hindsight.judge(decodes(SAID), column(9), [])
    assert taken(hindsight) == [[1, 1, 1]]


def test_a_row_that_ended_is_left_out_and_a_new_owner_begins_anew():
    hindsight = Hindsight()
    hindsight.judge(decodes(SAID), column(7), [])
    hindsight.judge(decodes(SAID), column(8), [0])
    assert taken(hindsight) == [[1, 1, 1]]
    hindsight.forget(0)
    hindsight.judge(decodes([1, 2, 3]), column(7), [])
    assert taken(hindsight) == [[1, 0, 0]]


def test_a_slot_whose_drafts_are_not_verified_is_not_judged():
    hindsight = Hindsight(lambda slot: slot != 0)
    hindsight.judge(decodes(SAID, SAID), column(7, 7), [])
    assert [steps for steps, _, _ in taken(hindsight, 2)] == [0, 1]


def test_of_many_new_sequences_a_step_reads_a_few():
    """It reads as many tokens as there is time for, and one text however long it is."""
    hindsight = Hindsight()
    hindsight.judge(decodes(SAID, SAID, SAID), column(7, 7, 7), [])
    assert [steps for steps, _, _ in taken(hindsight, 3)] == [1, 1, 1]
    hindsight, texts = Hindsight(), [list(range(MOST_READ)) for _ in range(3)]
    for number in range(3):
        hindsight.judge(decodes(*texts), column(7, 7, 7), [])
        assert [steps > 0 for steps, _, _ in taken(hindsight, 3)] == [row <= number for row in range(3)]
        for text in texts:
            text.append(7)


def test_some_right_guesses_in_a_row_report_that_a_sequence_has_begun_to_copy():
    hindsight, text = Hindsight(), [*range(40), 3, 4]
    for number in range(12):
        hindsight.judge(decodes(text), column(5 + number), [])
        assert hindsight.stirred == (number + 1 == IN_A_ROW), "once for each time that it begins"
        hindsight.take(np.arange(1))


def test_of_the_steps_before_a_sequence_began_to_copy_only_as_many_count_as_it_has_copied():
    hindsight, text = Hindsight(), decodes([*range(40), 3, 4])
    for token in (50, 60, 70, 8, 9, *range(10, 10 + IN_A_ROW)):  # one guess is wrong, and four times nothing is found
        hindsight.judge(text, column(token), [])
    steps, found, guesses, right = hindsight.take(np.arange(1))[:, 0].tolist()
    assert (steps, found, guesses, right) == (2 * IN_A_ROW, IN_A_ROW, IN_A_ROW + 1, IN_A_ROW)


def test_a_sequence_that_goes_on_copying_after_its_drafts_is_reported_again():
    hindsight, text = Hindsight(), [*range(40), 3, 4]
    drafted = decodes(text, drafts=[1])
    plain, token = decodes(text), iter(range(5, 40))
    for _ in range(2):
        for _ in range(IN_A_ROW):
            hindsight.judge(plain, column(next(token)), [])
        assert hindsight.stirred
        hindsight.take(np.arange(1))
        hindsight.judge(drafted, np.array([[next(token), next(token)]]), [])


def test_texts_of_one_token_and_of_none_that_repeat_are_read():
    assert Text([4]).guess == -1 and Text([4, 5]).guess == -1
    text = Text([4])
    text.extend([4, 4, 4])
    assert text.guess == 4


def test_after_a_rest_the_texts_are_read_again():
    hindsight = Hindsight()
    hindsight.judge(decodes(SAID), column(7), [])
    hindsight.rest()
    assert taken(hindsight) == [[0, 0, 0]]
    hindsight.judge(decodes([*SAID, 7, 8]), column(9), [])
    assert taken(hindsight) == [[1, 1, 1]]
