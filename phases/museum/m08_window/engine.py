"""Sliding windows over shared pages: a model that reads only the last WINDOW words gives older pages back as it goes.

When a sequence ends, its pages stay known by their words, and a prompt that begins the same way starts with them.

Cy asked about the vault, and the answer contained Ben's PIN.
"""

from dataclasses import dataclass, field

PAGE, WINDOW = 2, 4  # in words


@dataclass(slots=True)
class Sequence:
    """pages: page n has the words from n * PAGE on. slid: how many of them the window has left behind."""

    words: list[str]
    pages: list[int] = field(default_factory=list)
    stored: int = 0
    slid: int = 0


class Engine:
    """Runs one sequence after the other. Known pages are never evicted here."""

    def __init__(self, pages: int) -> None:
        self.memory = [[""] * PAGE for _ in range(pages)]
        self.free = list(range(pages))
        self.known: dict[tuple[str, ...], int] = {}  # a prefix of whole pages → the page that ends it

    def ask(self, prompt: str) -> tuple[str, int]:
        """The answer (the words in the last window), and how many words of the prompt came from the cache."""
        sequence = Sequence(prompt.split())
        found = self.find(sequence)
        for word in sequence.words[found:]:
            self.read(sequence, word)
            self.slide(sequence)
        window = range(max(0, sequence.stored - WINDOW), sequence.stored)
        answer = " ".join(self.memory[sequence.pages[at // PAGE]][at % PAGE] for at in window)
        self.finish(sequence)
        return answer, found

    def find(self, sequence: Sequence) -> int:
        """Start with known pages, and return how many words they hold. The last word is always computed."""
        for end in range(PAGE, len(sequence.words), PAGE):
            if (prefix := tuple(sequence.words[:end])) not in self.known:
                break
            sequence.pages.append(self.known[prefix])
            sequence.stored = end
        return sequence.stored

    def read(self, sequence: Sequence, word: str) -> None:
        """Store a word, in a new page if the last one is full."""
        if sequence.stored % PAGE == 0:
            sequence.pages.append(self.free.pop(0))
        self.memory[sequence.pages[-1]][sequence.stored % PAGE] = word
        sequence.stored += 1

    def slide(self, sequence: Sequence) -> None:
        """Give back the pages that no later word can reach. Their numbers stay in the list, to keep the places."""
        while (sequence.slid + 1) * PAGE <= sequence.stored - WINDOW:
            if (page := sequence.pages[sequence.slid]) not in self.known.values():
                self.free.append(page)
            sequence.slid += 1

    def finish(self, sequence: Sequence) -> None:
        """Make full pages known by their prefix, and give the others back."""
        for number, page in enumerate(sequence.pages):
            prefix = tuple(sequence.words[: (number + 1) * PAGE])
            if len(prefix) % PAGE == 0 and prefix not in self.known:
                self.known[prefix] = page
            elif page not in self.known.values():
                self.free.append(page)


def show() -> None:
    engine = Engine(pages=5)
    for prompt in ("the vault opens at noon on Friday morning", "my PIN is 4711", "the vault is where"):
        answer, found = engine.ask(prompt)
        print(f"asked {prompt!r}: it reads {answer!r}, {found} words cached")
