"""Which heads a rank has, and its rows of the checkpoint's queries, keys and values.

A rank attends on its own: with each query head it needs the key-value head that this one reads. Where ranks outnumber
the key-value heads, several of them hold the same one.
"""

import torch
from torch import Tensor

from gradus.errors import ConfigError
from gradus.models import ModelConfig


def heads_of(config: ModelConfig, part: int, parts: int) -> tuple[range, range]:
    """A part's query heads, and the key-value heads that they read. Query head h reads h // (Hq // Hkv).

    A group is the query heads that read the same key-value head. Raises ConfigError unless every part has as many query
    heads as the others, and these are whole groups or lie within one group.
    """
    if config.num_heads % parts:
        raise ConfigError(f"{config.num_heads} heads cannot be divided among {parts} ranks")
    each, group = config.num_heads // parts, config.num_heads // config.num_kv_heads
    if each % group and group % each:
        raise ConfigError(f"{config.num_kv_heads} key-value heads cannot be divided among {parts} ranks")
    queries = range(part * each, (part + 1) * each)
    return queries, range(queries.start // group, (queries.stop - 1) // group + 1)


def cut_qkv(q: Tensor, k: Tensor, v: Tensor, config: ModelConfig, part: int, parts: int) -> Tensor:
    """A part's rows of three matrices, or of their biases, one above another as the fused product has them.

    q: [Hq Dh, D] or [Hq Dh], k and v: [Hkv Dh, D] or [Hkv Dh].
    """
    queries, keys = heads_of(config, part, parts)
    return torch.cat([rows(matrix, heads, config.head_dim) for matrix, heads in ((q, queries), (k, keys), (v, keys))])


def rows(matrix: Tensor, heads: range, head_dim: int) -> Tensor:
    """The rows of some heads."""
    return matrix[heads.start * head_dim : heads.stop * head_dim]
