"""A tokenizer's own memory stays the same, whatever texts come."""

from random import Random

import psutil

from gradus.loading.tokenizer import Tokenizer

MIB = 2**20


def test_texts_that_are_not_cut_into_words_are_not_kept():
    """The library would keep 10,000 of them: half a kilobyte for each of these letters."""
    tokenizer, letters, process = Tokenizer.of_bytes(), Random(0), psutil.Process()
    sizes = []
    for _ in range(3):
        for _ in range(1500):
            tokenizer.encode("".join(letters.choices("abcdefgh ", k=150)))
        sizes.append(process.memory_info().rss)
    assert sizes[2] - sizes[0] < 4 * MIB, [size // MIB for size in sizes]
