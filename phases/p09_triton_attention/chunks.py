"""Count what a chunk of a long prompt costs, and cut a prompt so that no step costs more than a limit.

Cost is counted in FLOPs (a multiplication and an addition are two), as exact integers. There are two kinds of work:

    matrices     each token is multiplied by all weights          2 · weights · count
    attention    each pair of a query and a key it sees           4 · width · pairs(start, count)

Attention's 4: a pair takes a product with the key and one with the value. Pairs grow with the position, so a chunk far
into a prompt costs more than one at its beginning. No torch here.
"""

from dataclasses import dataclass
from math import isqrt
from statistics import linear_regression

from gradus.errors import ConfigError
from gradus.models.config import ModelConfig, active_parameters


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model as its FLOPs see it.

    weights: numbers in the matrices that each token is multiplied by, over all layers.
    width: numbers in a token's queries, over all layers: layers · query heads · numbers of a head.
    """

    weights: int
    width: int

    @classmethod
    def of(cls, config: ModelConfig) -> "Sizes":
        """Raises ConfigError for a model with sliding windows, whose cost stops growing in some layers."""
        if any(window is not None for window in config.windows):
            raise ConfigError("chunks are counted for models whose layers all see the whole prompt; this has windows")
        widths = [config.layer(layer).q_width for layer in range(config.num_layers)]
        return cls(active_parameters(config), sum(widths))


def pairs(start: int, count: int) -> int:
    """Count the pairs of a query and a key that it sees, for `count` tokens from position `start` on.

    The token at position p sees p + 1 keys: all before it, and its own.
    """
    return count * start + count * (count + 1) // 2


def flops(sizes: Sizes, start: int, count: int) -> int:
    """Count the FLOPs of a chunk: `count` tokens from position `start` on."""
    return 2 * sizes.weights * count + 4 * sizes.width * pairs(start, count)


def even(sizes: Sizes) -> float:
    """Return the position at which a token's attention takes as many FLOPs as its products with the weights.

    Before it the weights dominate a token's cost, beyond it attention does. A whole prompt has as much attention as
    weights at twice this length.
    """
    return sizes.weights / (2 * sizes.width)


def most_tokens(sizes: Sizes, start: int, limit: int) -> int:
    """Return the length of the longest chunk from position `start` on whose FLOPs are at most `limit`; at least 1.

    A prompt must advance in every step, so a token that alone costs more than the limit runs all the same.
    """
    square = 2 * sizes.width  # a chunk of c tokens costs square · c² + linear · c
    linear = 2 * sizes.weights + 4 * sizes.width * start + square
    return max(1, (isqrt(linear * linear + 4 * square * limit) - linear) // (2 * square))


def cut(sizes: Sizes, start: int, end: int, limit: int) -> list[tuple[int, int]]:
    """Cut the positions [start, end) into chunks (start, count), each as long as `limit` FLOPs allow.

    start: the first position to compute, which is not 0 if the prefix cache has the beginning.
    """
    chunks = []
    while start < end:
        count = min(most_tokens(sizes, start, limit), end - start)
        chunks.append((start, count))
        start += count
    return chunks


# -- from FLOPs to seconds ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rates:
    """FLOPs per second that a machine reaches in products with weights, and in attention."""

    matrices: float
    attention: float


def seconds(sizes: Sizes, tokens: int, rates: Rates) -> float:
    """Predict the time of a prompt of `tokens` tokens that is alone, from its two kinds of FLOPs."""
    return 2 * sizes.weights * tokens / rates.matrices + 4 * sizes.width * pairs(0, tokens) / rates.attention


def fitted(sizes: Sizes, measured: list[tuple[int, float]]) -> Rates:
    """Return the rates that explain measured (tokens, seconds) best.

    The seconds per token are a line in the length: it begins at 2 · weights / matrices, and each token of the prompt
    adds 2 · width / attention. Raises ConfigError if the line does not rise from a positive beginning.
    """
    lengths, times = [tokens for tokens, _ in measured], [took / tokens for tokens, took in measured]
    if len(set(lengths)) < 2:
        raise ConfigError(f"{len(set(lengths))} length gives no two rates: measure short prompts and long ones")
    rise, begin = linear_regression(lengths, times)
    if rise <= 0 or begin <= 0:
        raise ConfigError("the seconds per token do not grow with the length: measure longer prompts")
    return Rates(2 * sizes.weights / begin, 2 * sizes.width / rise)
