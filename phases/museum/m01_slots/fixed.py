"""A slot's new owner starts from an empty state."""

from phases.museum.m01_slots import engine


class Engine(engine.Engine):
    """Clears a state where its slot is handed out."""

    def admit(self) -> None:
        """Give the free slots to the requests that have waited longest."""
        while self.free and self.waiting:
            slot = self.free.pop()
            self.states[slot] = []
            self.running[slot] = self.waiting.popleft()
