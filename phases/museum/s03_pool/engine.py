"""Decoding with the keys and values of all sequences in one pool. A sequence takes a row of it for each position.

A step computes one token of each sequence: it stores the new key and value in a row of the pool, then attends over the
sequence's own rows. The model is one layer of attention with random weights, and always says its likeliest token.

Two users got the same answers as before. The operator had given the cache more memory, and every token came later.
"""

from time import perf_counter

import torch
from torch import Tensor

VOCABULARY, WIDTH = 64, 32


class Model:
    """One layer: a token's query, key and value are its embedding times a matrix each. float64, for exact tokens."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(0)
        self.embedding = torch.randn(VOCABULARY, WIDTH, generator=random, dtype=torch.float64)
        self.projections = torch.randn(3, WIDTH, WIDTH, generator=random, dtype=torch.float64) / WIDTH**0.5
        self.head = torch.randn(WIDTH, VOCABULARY, generator=random, dtype=torch.float64)


class Pool:
    """cache: [2, rows, WIDTH], keys and values. free: rows that no sequence has."""

    def __init__(self, rows: int) -> None:
        self.cache = torch.zeros(2, rows, WIDTH, dtype=torch.float64)
        self.free = list(range(rows))

    def store(self, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values, [N, WIDTH] each, in N rows."""
        old_keys, old_values = self.cache
        self.cache = torch.stack([old_keys.index_copy(0, rows, keys), old_values.index_copy(0, rows, values)])

    def read(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """Read the keys and values, [len(rows), WIDTH] each, of one sequence."""
        keys, values = self.cache[:, rows]
        return keys, values


class Engine:
    def __init__(self, model: Model, pool: Pool) -> None:
        self.model = model
        self.pool = pool

    @torch.inference_mode()
    def generate(self, prompts: list[int], steps: int) -> list[list[int]]:
        """Continue each prompt, which is a single token, by `steps` tokens."""
        answers = [[prompt] for prompt in prompts]
        rows: list[list[int]] = [[] for _ in prompts]
        for _ in range(steps):
            for own in rows:
                own.append(self.pool.free.pop())
            tokens = torch.tensor([answer[-1] for answer in answers])
            for answer, token in zip(answers, self.step(tokens, rows).tolist(), strict=True):
                answer.append(token)
        self.pool.free += [row for own in rows for row in own]
        return [answer[1:] for answer in answers]

    def step(self, tokens: Tensor, rows: list[list[int]]) -> Tensor:
        """tokens: [N], the newest of each sequence. rows: the rows of each, its newest position last. Returns [N]."""
        hidden = self.model.embedding[tokens]
        queries, keys, values = hidden @ self.model.projections
        self.pool.store(torch.tensor([own[-1] for own in rows]), keys, values)
        out = torch.stack([attend(query, *self.pool.read(own)) for query, own in zip(queries, rows, strict=True)])
        return (out @ self.model.head).argmax(dim=-1)


def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return torch.softmax(keys @ query / WIDTH**0.5, dim=0) @ values


def show() -> None:
    torch.set_num_threads(1)  # on a shared machine, threads that wait for one another are most of a small step
    print(f"{'rows in the pool':<20}{'MB':>8}{'ms per step':>14}")
    for rows in (1_000, 8_000, 64_000):
        engine = Engine(Model(), Pool(rows))
        engine.generate([1, 2], steps=2)
        start = perf_counter()
        engine.generate([1, 2], steps=20)
        print(f"{rows:<20,}{engine.pool.cache.nbytes / 1e6:>8.1f}{(perf_counter() - start) * 50:>14.2f}")


if __name__ == "__main__":
    show()
