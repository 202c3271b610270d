"""The records of a step's rows and of drafters' passes, the same for every device, and the operations on them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradus.engine.plan import Decodes


class DecodeRows(NamedTuple):
    """The rows of a step without drafts, one per sequence: as in `VerifyRows`, with no spans."""

    tokens: Any
    positions: Any
    slots: Any
    ends: Any
    places: Any


class VerifyRows(NamedTuple):
    """The R rows of a step with up to K drafts for each of B spans: tensors on a device, or numpy columns on the host.

    tokens, positions: int64 [R]; slots: int32 [R]. ends: int32 [R], the positions of the drawn tokens. Rows after the
    last span's are padding: token 0 at position 0 of the last slot, with the end 0. places: int64 [G, R], where keys
    and values go, in each layer group; None where the model's pass finds them itself. query_start: int32 [B + 1]: span
    i has the rows from query_start[i] up to query_start[i + 1]. lengths: int32 [B], each sequence's length with its
    rows; 0 for a span without rows.
    """

    tokens: Any
    positions: Any
    slots: Any
    ends: Any
    places: Any
    query_start: Any
    lengths: Any


StepRows = DecodeRows | VerifyRows


class Drafting(NamedTuple):
    """B sequences that a draft model drafts for.

    slots, limits: int32 [B]; limits are the positions that each may store. known: int64 [S], the number of tokens by
    slot; the last slot is padding's. longest, vocabulary: the draft model's context length and number of tokens.
    """

    slots: Tensor
    limits: Tensor
    known: Tensor
    longest: int
    vocabulary: int


class NextRows(NamedTuple):
    """One row for each of B sequences. tokens, positions: int64 [B]. slots, lengths: int32 [B]; lengths include the
    row's own position, and are 0 for padding."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    lengths: Tensor


class DraftInputs(NamedTuple):
    """The inputs of the first pass of heads for B sequences, and the slots and positions of all draws.

    joined: [B, 2 D], states and embeddings. slots, positions: int32 [passes, B · together], of each draw's rows: the
    drafts of one pass are drawn together, and a sequence's rows are adjacent.
    """

    joined: Tensor
    slots: Tensor
    positions: Tensor


class StepOperations(NamedTuple):
    """The operations of a step on the tables by slot. `plain.py` computes them on a CPU, and kernels of the same
    names on a GPU, in one launch each.

    inputs: (decodes, device) → slots, limits and drafts, [3, B], where the other operations read them.
    early: a context in which launches start while those before them drain (`gradus.kernels.core.overlap`).
    """

    inputs: Callable[[Decodes, torch.device], Any]
    decode_rows: Callable[..., DecodeRows]
    pack_rows: Callable[..., VerifyRows]
    accept_drafts: Callable[..., tuple[Any, Any]]
    keep_prompts: Callable[..., None]
    early: Callable[[bool], AbstractContextManager[None]]
