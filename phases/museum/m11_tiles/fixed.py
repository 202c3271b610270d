"""A loop over tiles that counts the last one too, which may have fewer rows."""

from phases.museum.m11_tiles import engine
from phases.museum.m11_tiles.engine import NOUNS as NOUNS
from phases.museum.m11_tiles.engine import OTHERS as OTHERS
from phases.museum.m11_tiles.engine import TILE, Expert


class Mixture(engine.Mixture):
    """Begins a tile wherever rows are left."""

    def grouped(self, expert: Expert, rows: list[str]) -> list[str]:
        """Run an expert on all of its rows. Few rows are one tile, many are a loop over tiles."""
        if len(rows) <= TILE:
            return expert.run(rows) if rows else []
        results: list[str] = []
        for start in range(0, len(rows), TILE):
            results += expert.run(rows[start : start + TILE])
        return results
