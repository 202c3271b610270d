"""A sequence whose window has slid makes nothing known: its first pages are gone."""

from phases.museum.m08_window import engine
from phases.museum.m08_window.engine import PAGE
from phases.museum.m08_window.engine import Sequence as Sequence


class Engine(engine.Engine):
    """Looks only at the pages that the sequence still has."""

    def finish(self, sequence: Sequence) -> None:
        """Make full pages known by their prefix, and give the others back."""
        for number in range(sequence.slid, len(sequence.pages)):
            page = sequence.pages[number]
            prefix = tuple(sequence.words[: (number + 1) * PAGE])
            if sequence.slid == 0 and len(prefix) % PAGE == 0 and prefix not in self.known:
                self.known[prefix] = page
            elif page not in self.known.values():
                self.free.append(page)
