"""Tokens are those of a model without a cache, and a step moves as many bytes in a large pool as in a small one."""

from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations that write the rows named by an index, into a tensor that may be large.
INDEXED = {"index_copy_", "index_put_", "_index_put_impl_", "scatter_", "index_add_", "index_fill_"}


def test_the_tokens_are_those_of_a_model_without_a_cache(engine: Any) -> None:
    model = engine.Model()
    said = engine.Engine(model, engine.Pool(100)).generate([1, 2, 3], steps=20)
    right = [recomputed(engine, model, prompt, 20) for prompt in (1, 2, 3)]
    assert said == right, f"the answers are {said}, where a model without a cache says {right}"


def test_rows_that_are_used_again_hold_nothing_of_before(engine: Any) -> None:
    model, pool = engine.Model(), engine.Pool(40)
    runs = engine.Engine(model, pool)
    for prompts in ([1, 2], [7], [3, 9]):
        said = runs.generate(prompts, steps=20)
        assert said == [recomputed(engine, model, prompt, 20) for prompt in prompts], f"{prompts} got {said}"


def test_a_pool_has_its_rows_from_the_start(engine: Any) -> None:
    pool = engine.Pool(500)
    assert pool.cache.shape == (2, 500, engine.WIDTH), f"the cache has the shape {tuple(pool.cache.shape)}"
    assert len(pool.free) == 500


def test_a_step_writes_as_many_bytes_in_a_large_pool(engine: Any) -> None:
    small, large = (written(engine, rows) for rows in (100, 20_000))
    assert large <= 1.1 * small, f"a step writes {small:,.0f} bytes among 100 rows, and {large:,.0f} among 20,000"


def test_a_step_takes_no_longer_in_a_large_pool(engine: Any) -> None:
    small, large = (min(seconds(engine, rows)) for rows in (100, 50_000))
    assert large < 8 * small, f"with 50,000 rows, a step takes {large / small:.0f} times as long as with 100"


def recomputed(engine: Any, model: Any, prompt: int, steps: int) -> list[int]:
    """Decode without a cache: every step computes all positions again."""
    tokens = [prompt]
    for _ in range(steps):
        hidden = model.embedding[tokens]
        queries, keys, values = hidden @ model.projections
        weights = torch.softmax(keys @ queries[-1] / engine.WIDTH**0.5, dim=0)
        tokens.append(int((weights @ values @ model.head).argmax()))
    return tokens[1:]


class Written(TorchDispatchMode):
    """Counts the bytes that operations write. Views write nothing, and an index in place only what it names."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Answer without asking torch, which would import its compiler for that and take a second."""
        return False

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = operation(*args, **(kwargs or {}))
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        name = operation.overloadpacket.__name__
        if name in INDEXED:
            self.count += given[-1].nbytes
        elif name.endswith("_") or "out" in (kwargs or {}):
            self.count += sum(one.nbytes for one in tree_leaves(out))
        else:
            known = {one.untyped_storage().data_ptr() for one in given}
            fresh = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
            self.count += sum(one.nbytes for one in fresh if one.untyped_storage().data_ptr() not in known)
        return out


def written(engine: Any, rows: int) -> float:
    """Bytes that a step writes, over 10 steps of two sequences."""
    runs = engine.Engine(engine.Model(), engine.Pool(rows))
    with Written() as found:
        runs.generate([1, 2], steps=10)
    return found.count / 10


def seconds(engine: Any, rows: int) -> list[float]:
    """How long each of a few steps took; the shortest is the one that nothing interrupted."""
    runs = engine.Engine(engine.Model(), engine.Pool(rows))
    times = []
    for _ in range(15):
        start = perf_counter()
        runs.generate([1, 2], steps=1)
        times.append(perf_counter() - start)
    return times
