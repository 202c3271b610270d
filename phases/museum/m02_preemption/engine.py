"""A paged cache that remembers: a page given back holds its tokens until it is taken again, and can be found by them.

Without free pages, the last sequence is preempted: it gives its pages back, and finds most of them when it resumes.

The engine passed every test. Under load, it died with an IndexError.
"""

from dataclasses import dataclass, field

PAGE = 2  # tokens per page


@dataclass(slots=True)
class Sequence:
    """wanted: its length at the end. stored: how many of its tokens have keys and values in its pages."""

    tokens: list[int]
    wanted: int
    pages: list[int] = field(default_factory=list)
    stored: int = 0


class Engine:
    def __init__(self, pages: int) -> None:
        self.free = list(range(pages))
        self.holds: list[list[int]] = [[] for _ in range(pages)]  # all tokens up to the last one in the page

    def run(self, sequences: list[Sequence]) -> None:
        while running := [sequence for sequence in sequences if len(sequence.tokens) < sequence.wanted]:
            for sequence in running:
                span = self.plan(sequence)
                if span is None:  # make room, and begin the next step with the first sequence
                    self.give_back([other for other in running if other.pages][-1])
                    break
                self.forward(sequence, *span)

    def plan(self, sequence: Sequence) -> tuple[int, int] | None:
        """Decide what to compute: the first position, and how many tokens. None: there are too few pages."""
        count = len(sequence.tokens) - sequence.stored
        if not sequence.pages:
            self.find(sequence)
        missing = -(-len(sequence.tokens) // PAGE) - len(sequence.pages)
        if missing > len(self.free):
            return None
        sequence.pages += [self.free.pop(0) for _ in range(missing)]
        return sequence.stored, count

    def find(self, sequence: Sequence) -> None:
        """Take back the free pages that hold the sequence's beginning. The last token is always computed."""
        for end in range(PAGE, len(sequence.tokens), PAGE):
            found = [page for page in self.free if self.holds[page] == sequence.tokens[:end]]
            if not found:
                return
            self.free.remove(found[0])
            sequence.pages.append(found[0])
            sequence.stored = end

    def forward(self, sequence: Sequence, start: int, count: int) -> None:
        """Store `count` tokens from position `start` on, then append the model's next one."""
        for position in range(start, start + count):
            token = sequence.tokens[position]  # its keys and values would go into the page
            self.holds[sequence.pages[position // PAGE]] = [*sequence.tokens[:position], token]
        sequence.stored = len(sequence.tokens)
        sequence.tokens.append(sum(sequence.tokens) % 10)
        if len(sequence.tokens) == sequence.wanted:
            self.give_back(sequence)

    def give_back(self, sequence: Sequence) -> None:
        self.free += reversed(sequence.pages)  # so that the end of a prefix is taken before its beginning
        sequence.pages, sequence.stored = [], 0


def show() -> None:
    for pages in (8, 5):
        sequences = [Sequence([1, 2, 3], 8), Sequence([4, 5, 6], 8)]
        try:
            Engine(pages).run(sequences)
            print(f"{pages} pages:", *(sequence.tokens for sequence in sequences))
        except IndexError as error:
            print(f"{pages} pages: IndexError: {error}")
