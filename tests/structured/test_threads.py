"""Many rows at once: the same as one after the other, in threads that come late and go."""

import random
import threading

import numpy as np

from gradus.engine.structured import Structured
from gradus.structured import Job, MaskThreads
from gradus.structured.vocabulary import row_words
from tests.structured.vocabularies import EOS, WIDTH, encode, matcher

WORDS = row_words(WIDTH)
KINDS = [Structured(json=True), Structured(regex="(the|cat)+"), Structured(choice=["the cat", "the hat"])]
TEXTS = ['{"the cat":[1, 2]}', "thecat", "the hat"]


def answers(count: int, r: random.Random) -> list[tuple]:
    """Matchers somewhere in their answers, with drafts, some of them wrong."""
    made = []
    for number in range(count):
        tokens = [*encode(TEXTS[number % 3]), EOS[0], EOS[0]]
        place = r.randrange(len(tokens))
        drafts = tokens[place : place + r.randrange(5)]
        if drafts and r.random() < 0.4:
            drafts[r.randrange(len(drafts))] = r.choice([-1, 1, 70, EOS[1], 10**9])
        made.append((number, tokens[:place], drafts))
    return made


def matchers(made: list[tuple]) -> list:
    found = [matcher(KINDS[number % 3]) for number, _, _ in made]
    for each, (_, tokens, _) in zip(found, made, strict=True):
        each.accept(tokens)
    return found


def test_rows_are_those_of_single_matchers():
    r = random.Random(0)
    threads = MaskThreads(2)
    for count in (1, 2, 5, 40):
        made = answers(count, r)
        alone, together = matchers(made), matchers(made)
        total = sum(1 + len(drafts) for _, _, drafts in made) + 2
        expected, rows = np.full((total, WORDS), 7, np.int32), np.full((total, WORDS), 7, np.int32)
        jobs, row = [], 1
        for (_, _, drafts), one, other in zip(made, alone, together, strict=True):
            one.fill_drafts(expected[row : row + 1 + len(drafts)], drafts)
            jobs.append(Job(other, row, drafts))
            row += 1 + len(drafts)
        threads.start(jobs, rows)
        threads.wait()
        assert np.array_equal(rows, expected)
        assert [each.fault for each in together] == [each.fault for each in alone]
    threads.close()


def test_a_matcher_with_a_fault_gets_zeros_and_the_others_their_rows(monkeypatch):
    class Panic(BaseException):
        pass

    class Broken:
        def __getattr__(self, name):
            raise Panic("assertion failed")

    made = [matcher(KINDS[number % 3]) for number in range(8)]
    made[2].accept([-1])
    monkeypatch.setattr(made[4], "_inner", Broken())
    rows = np.full((8, WORDS), 7, np.int32)
    threads = MaskThreads(2)
    threads.start([Job(each, row) for row, each in enumerate(made)], rows)
    threads.wait()
    threads.close()
    assert [each.fault is not None for each in made] == [row in (2, 4) for row in range(8)]
    for row, each in enumerate(made):
        assert rows[row].any() == (row not in (2, 4))
        if row not in (2, 4):
            alone = np.zeros(WORDS, np.int32)
            each.fill(alone)
            assert np.array_equal(rows[row], alone)


def test_threads_begin_with_the_first_job_that_needs_them_and_end_when_closed():
    before = threading.enumerate()  # engines of other tests may have some

    def ours() -> list[str]:
        return [
            thread.name
            for thread in threading.enumerate()
            if thread not in before and thread.name.startswith("gradus-masks")
        ]

    threads = MaskThreads(2)
    made = [matcher(KINDS[0]) for _ in range(8)]
    rows = np.zeros((8, WORDS), np.int32)
    threads.start([Job(made[0], 0)], rows)
    assert rows[0].any() and not ours()
    threads.start([Job(each, row) for row, each in enumerate(made)], rows)
    threads.wait()
    assert len(ours()) == 1 and rows[7].any()
    threads.close()
    threads.close()
    assert not ours()
    rows[:] = 0
    threads.start([Job(each, row) for row, each in enumerate(made)], rows)
    threads.close()
    assert rows[7].any()


def test_a_start_waits_for_the_one_before_it():
    threads = MaskThreads(1)
    made = [matcher(KINDS[0]) for _ in range(16)]
    rows = np.zeros((16, WORDS), np.int32)
    for _ in range(20):
        threads.start([Job(each, row) for row, each in enumerate(made)], rows)
    threads.wait()
    assert all(each.fault is None for each in made)
    threads.close()


def test_nothing_to_do():
    threads = MaskThreads()
    threads.start([], np.zeros((0, WORDS), np.int32))
    threads.wait()
    threads.close()
