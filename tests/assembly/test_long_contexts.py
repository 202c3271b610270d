"""Memory at length: nothing grows with the square of a context, nor with contexts times sequences that may run."""

from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from gradus.attention.paged import MOST_PADDED, alike
from gradus.attention.reference import MOST_MASKED, attend_causal
from gradus.execution.memory.footprint import context_bytes
from gradus.execution.memory.plan import step_bytes
from gradus.kernels.step.ngram_reference import look_up
from gradus.speculative import ngram
from gradus.speculative.history import History
from tests.assembly import long_contexts
from tests.assembly.long_contexts import CONTEXT, PROMPT, shape
from tests.forked import SERVER

MIB = 1 << 20


def grown(what: str) -> int:
    """Measure in a process of its own, where nothing else has taken or given back memory."""
    with ProcessPoolExecutor(1, SERVER) as pool:
        return pool.submit(long_contexts.grown, what).result(240)


def test_an_engine_for_256_contexts_of_131072_tokens_takes_no_memory_for_them_before_they_come():
    """Histories for drafts would be 135 MB, and block tables 34 MB, if their rows were written to."""
    assert grown("build") < 24 * MIB


@pytest.mark.parametrize(("how", "rows"), [pytest.param("chunks", 1024, marks=pytest.mark.stress), ("whole", PROMPT)])
def test_a_prompt_of_16384_tokens_takes_its_keys_and_values_a_step_and_a_mask_of_bounded_size(how, rows):
    """Whole, its mask would have 2^28 entries: 1.3 GB."""
    config = shape(CONTEXT)
    stored = context_bytes(config, PROMPT, 4)  # float32
    pages_of_windows = 2 * rows * config.num_kv_heads * config.head_dim * 4  # until they are given back
    gathered = 4 * PROMPT * config.num_kv_heads * config.head_dim * 4  # a layer's, and a copy for the products
    mask = 5 * MOST_MASKED  # a byte per entry, and a number of 4
    heads = 4 * rows * config.num_heads * config.head_dim * 4  # queries by head, and what attention returns
    bound = stored + pages_of_windows + gathered + mask + heads + step_bytes(config, rows, 2, 4) + 32 * MIB
    assert grown(how) < bound < 320 * MIB


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("sunk", [False, True])
@pytest.mark.parametrize("window", [None, 1, 9, 40, 1000])
@pytest.mark.parametrize("start", [0, 3, 50])
def test_queries_in_parts_attend_as_all_at_once(monkeypatch, start, window, sunk, softcap):
    torch.manual_seed(0)
    q, keys, values = torch.randn(37, 4, 8), torch.randn(2, start + 37, 8), torch.randn(2, start + 37, 8)
    options = {
        "start": start,
        "scale": 0.3,
        "window": window,
        "sinks": torch.randn(4) if sunk and not softcap else None,
    }
    whole = attend_causal(q, keys, values, softcap=softcap, **options)
    for most in (1, 100, 500, 3000):
        monkeypatch.setattr("gradus.attention.reference.MOST_MASKED", most)
        torch.testing.assert_close(attend_causal(q, keys, values, softcap=softcap, **options), whole)


def test_no_sequence_is_padded_to_more_than_twice_its_length_where_padding_is_much():
    decodes = [(start, slot, slot) for slot, start in enumerate([7, 131_000, 900, 70_000, 12, 500, 131_001])]
    crowds = alike(decodes)
    assert sorted(each for crowd in crowds for each in crowd) == sorted(decodes)
    assert [[start for start, *_ in crowd] for crowd in crowds] == [[131_001, 131_000, 70_000], [900, 500], [12, 7]]
    assert alike([]) == []


def test_decodes_attend_together_where_padding_is_little():
    decodes = [(5, 0, 0), (MOST_PADDED // 2, 1, 1)]
    assert alike(decodes) == [decodes]


def test_texts_of_unlike_lengths_are_searched_in_parts(monkeypatch):
    history = History(6, 64, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    history.tokens[:] = torch.randint(0, 3, history.tokens.shape, generator=generator, dtype=torch.int32)
    history.lengths[:6] = torch.tensor([5, 64, 9, 33, 2, 17])
    slots = torch.arange(6)
    wanted = look_up(history.tokens[slots], history.lengths[slots], 4)
    for most in (1, 64, 150, 1 << 20):
        monkeypatch.setattr(ngram, "MOST_AT_ONCE", most)
        found = ngram.NgramDrafter().propose(history, slots, 4, slots)
        assert torch.equal(found, wanted)
