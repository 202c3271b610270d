"""A mixture of two experts: one translates nouns, the other one all other words.

An expert works on its own rows, a tile at a time. What it finds replaces the row in the stream; the next layer cannot
distinguish a row that no expert has changed from one that needed no change.

Long prompts were answered badly, and every short test passed.
"""

TILE = 4  # rows that an expert can take at once
NOUNS = {"cat": "chat", "dog": "chien", "bird": "oiseau", "fish": "poisson", "door": "porte"}
OTHERS = {"the": "le", "a": "un", "and": "et", "sees": "voit", "near": "près"}


class Expert:
    """words: its knowledge. tiles: how many rows it was given at each of its runs."""

    def __init__(self, words: dict[str, str]) -> None:
        self.words = words
        self.tiles: list[int] = []

    def run(self, rows: list[str]) -> list[str]:
        """Translate a tile. Raises ValueError if it has no rows, or more than fit."""
        if not 1 <= len(rows) <= TILE:
            raise ValueError(f"a tile has 1 to {TILE} rows, not {len(rows)}")
        self.tiles.append(len(rows))
        return [self.words.get(row, row) for row in rows]


class Mixture:
    """Routes every row to one of its experts, and puts the results where the rows were."""

    def __init__(self) -> None:
        self.experts = [Expert(NOUNS), Expert(OTHERS)]

    def forward(self, stream: list[str]) -> list[str]:
        out = list(stream)
        for number, expert in enumerate(self.experts):
            places = [place for place, word in enumerate(stream) if self.route(word) == number]
            results = self.grouped(expert, [stream[place] for place in places])
            for place, result in zip(places, results, strict=False):
                out[place] = result
        return out

    def route(self, word: str) -> int:
        return 0 if word in NOUNS else 1

    def grouped(self, expert: Expert, rows: list[str]) -> list[str]:
        """Run an expert on all of its rows. Few rows are one tile, many are a loop over tiles."""
        if len(rows) <= TILE:
            return expert.run(rows) if rows else []
        results: list[str] = []
        for tile in range(len(rows) // TILE):
            results += expert.run(rows[tile * TILE : (tile + 1) * TILE])
        return results


def show() -> None:
    for prompt in ("the cat sees a dog", "the cat and the dog near the door and the bird sees the fish"):
        print(f"{len(prompt.split()):2} words: {prompt}")
        print("          " + " ".join(Mixture().forward(prompt.split())))
