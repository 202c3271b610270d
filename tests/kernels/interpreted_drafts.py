"""Run by test_drafts.py in a process of its own, where Triton interprets: drafts looked up, laid out, and kept."""

from functools import partial

import pytest
import torch

from gradus.execution.gpu.results import Results
from gradus.kernels.step import draft_inputs, plain
from gradus.kernels.step.decode_rows import decode_rows
from gradus.kernels.step.draft_inputs import first_inputs, next_inputs
from gradus.kernels.step.draft_passes import first_rows, keep_draft, next_rows
from gradus.kernels.step.draft_reference import (
    first_inputs_reference,
    first_rows_reference,
    next_inputs_reference,
    next_rows_reference,
)
from gradus.kernels.step.ngram import look_up_slots
from gradus.kernels.step.ngram_reference import look_up
from gradus.kernels.step.prompt_history import keep_prompts
from gradus.kernels.step.rows import Drafting, NextRows
from gradus.kernels.step.table_entries import set_entries
from gradus.kernels.step.verify import accept_drafts, pack_rows
from gradus.models import SHAPES, create_model, randomize
from gradus.models.layers import EmbeddingTables
from gradus.speculative.history import History
from tests.kernels.cases import on_host

SLOTS, CONTEXT, PAGE = 6, 64, 4


@pytest.fixture(autouse=True)
def _poisoned():
    torch.set_deterministic_debug_mode("error")  # torch.empty then gives the largest number
    yield
    torch.set_deterministic_debug_mode("default")


def state(seed: int, vocabulary: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and lengths by slot, the last slot being padding's; few different tokens, so that they repeat."""
    generator = torch.Generator().manual_seed(seed)
    history = torch.randint(0, vocabulary, (SLOTS + 1, CONTEXT), generator=generator, dtype=torch.int32)
    known = torch.randint(1, CONTEXT - 10, (SLOTS + 1,), generator=generator)
    known[SLOTS] = 1
    return history, known


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_drafts_are_what_followed_the_longest_and_newest_match(seed, count):
    history, known = state(seed, 2 + 3 * seed)
    slots = torch.arange(SLOTS + 1, dtype=torch.int32)
    found = look_up_slots(slots, history, known, count)
    assert torch.equal(found, look_up(history, known, count))
    for slot in range(SLOTS):
        assert found[slot].tolist() == by_hand(history[slot, : known[slot]].tolist(), count)


def by_hand(said: list[int], count: int) -> list[int]:
    def agreed(place: int) -> int:
        both = zip(reversed(said[: place + 1]), reversed(said), strict=False)
        return min(4, next((n for n, (a, b) in enumerate(both) if a != b), place + 1))

    best = max(range(len(said) - 1), key=lambda place: (agreed(place), place), default=None)
    if best is None or agreed(best) < 2:
        return [-1] * count
    following = said[best + 1 :]
    return [following[n % len(following)] for n in range(count)]


def step(seed: int, drafts: int):
    generator = torch.Generator().manual_seed(seed)
    history, known = state(seed)
    slots = torch.tensor([4, 0, 2, SLOTS, 5], dtype=torch.int32)
    proposed = torch.randint(-1, 3, (5, drafts), generator=generator)
    room = torch.tensor([drafts + 1, 2, 0, 0, drafts + 9])
    limits = (known[slots.long()] - 1 + room).int()
    limits[3] = 0  # padding
    most = torch.tensor([drafts, drafts, drafts, 0, min(1, drafts)], dtype=torch.int32)
    barred = torch.zeros(SLOTS + 1, dtype=torch.int32)
    barred[5] = seed % 2
    tables = torch.randint(1, 50, (2, SLOTS + 1, CONTEXT // PAGE), generator=generator)
    tables[:, SLOTS] = 0
    return slots, limits, most, barred, history, known, proposed, tables, PAGE, 5 + int(most.sum())


@pytest.mark.parametrize("drafts", [0, 1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_packed_to_the_front_and_the_rest_is_padding(seed, drafts):
    arguments = step(seed, drafts)
    found, expected = pack_rows(*arguments), on_host(plain.pack_rows, *arguments)
    for name, mine, theirs in zip(found._fields, found, expected, strict=True):
        assert torch.equal(mine.long(), theirs.long()), name
    count = int(found.query_start[-1])
    assert (
        (found.slots[count:] == SLOTS).all() and not found.ends[count:].any() and (found.places[:, count:] < PAGE).all()
    )


@pytest.mark.parametrize(("rows", "whole"), [(1, False), (5, True), (130, False), (130, True)])
def test_a_step_without_drafts_starts_from_the_newest_tokens_and_counts_the_next(rows, whole):
    generator = torch.Generator().manual_seed(rows)
    slots = torch.randperm(200, generator=generator)[:rows].to(torch.int32)
    newest = torch.randint(0, 500, (201, 1), generator=generator, dtype=torch.int32)
    known = torch.randint(1, CONTEXT - 1, (201,), generator=generator)
    limits = (known[slots.long()] + torch.randint(-1, 3, (rows,), generator=generator)).int()
    slots[-1], limits[-1] = 200, 0  # padding
    tables = torch.randint(1, 50, (2, 201, CONTEXT // PAGE), generator=generator)
    tables[:, 200] = 0
    counted = known.clone(), known.clone()
    history = newest
    if whole:
        history = torch.full((201, CONTEXT), -9, dtype=torch.int32).scatter_(1, known[:, None] - 1, newest)
    mine = decode_rows(slots, limits, history, counted[0], tables, PAGE)
    theirs = on_host(plain.decode_rows, slots, limits, history, counted[1], tables, PAGE)
    assert torch.equal(*counted) and counted[0].sum() == known.sum() + int((mine.ends > 0).sum())
    for name, one, other in zip(mine._fields, mine, theirs, strict=True):
        assert torch.equal(one.long(), other.long()), name
    assert mine.slots[-1] == 200 and not mine.ends[-1] and (mine.places[:, -1] < PAGE).all()


def drafting(seed: int, count: int, longest: int = CONTEXT) -> tuple[Drafting, torch.Tensor, torch.Tensor]:
    """`count` sequences in any slots, with room for -1 to 4 more tokens than they have; history and block tables."""
    generator = torch.Generator().manual_seed(seed)
    history, known = state(seed)
    known[1] = 1
    slots = torch.randint(0, SLOTS + 1, (count,), generator=generator, dtype=torch.int32)
    room = torch.randint(-1, 5, (count,), generator=generator)
    limits = torch.where(slots == SLOTS, 0, known[slots.long()] + room).int()
    tables = torch.randint(1, 50, (2, SLOTS + 1, CONTEXT // PAGE), generator=generator)
    tables[:, SLOTS] = 0
    return Drafting(slots, limits, known, longest, 11), history, tables


@pytest.mark.parametrize("longest", [CONTEXT, 45])
@pytest.mark.parametrize("count", [1, 5, 130])
@pytest.mark.parametrize("seed", range(3))
def test_a_draft_begins_with_the_two_newest_tokens_where_there_is_room(seed, count, longest):
    spans, history, tables = drafting(seed, count, longest)
    inputs = torch.full((2, 2 * count + 3), -7)
    found = first_rows(spans, inputs, history, tables, PAGE)
    expected = first_rows_reference(spans, history, tables, PAGE)
    for name, mine, theirs in zip(found._fields, found, expected, strict=True):
        assert torch.equal(mine, theirs), name
    assert found.tokens.data_ptr() == inputs.data_ptr() and (inputs[:, 2 * count :] == -7).all()


def test_rows_that_have_no_room_are_refused_before_anything_is_written():
    spans, history, tables = drafting(0, 5, CONTEXT)
    inputs = torch.full((2, 9), -7)
    with pytest.raises(ValueError, match="5 sequences take 10 rows of inputs, and there are 9"):
        first_rows(spans, inputs, history, tables, PAGE)
    with pytest.raises(ValueError, match="5 sequences take as many rows of inputs, and there are 4"):
        next_rows(spans, inputs[:, :4], torch.zeros(5, dtype=torch.int64), torch.zeros(5, 2, dtype=torch.int64), 0)
    assert (inputs == -7).all()


def test_the_rows_that_drafts_begin_with_by_hand():
    """Slot 2 may store its newest token, slot 3 may not; slot 4 is padding's."""
    history = torch.arange(1, 6, dtype=torch.int32).unsqueeze(1) * 100 + torch.arange(8, dtype=torch.int32)
    known, tables = torch.tensor([8, 8, 5, 5, 1]), torch.arange(20).view(1, 5, 4) * 10
    slots, limits = torch.tensor([2, 3, 4], dtype=torch.int32), torch.tensor([5, 4, 0], dtype=torch.int32)
    rows = first_rows(Drafting(slots, limits, known, 8, 999), torch.zeros(2, 6, dtype=torch.int64), history, tables, 2)
    assert rows.tokens.tolist() == [303, 304, 0, 0, 0, 0] and rows.positions.tolist() == [3, 4, 0, 0, 0, 0]
    assert rows.slots.tolist() == [2, 2, 4, 4, 4, 4] and rows.ends.tolist() == [4, 5, 0, 0, 0, 0]
    assert rows.lengths.tolist() == [5, 0, 0] and rows.query_start.tolist() == [0, 2, 4, 6]
    assert rows.places.tolist() == [[90 * 2 + 1, 100 * 2, 160 * 2, 160 * 2, 160 * 2, 160 * 2]]


@pytest.mark.parametrize("longest", [CONTEXT, 45])
@pytest.mark.parametrize("count", [1, 5, 130])
@pytest.mark.parametrize("seed", range(3))
def test_each_pass_runs_what_the_last_one_drew_as_long_as_there_is_room(seed, count, longest):
    spans, _, _ = drafting(seed, count, longest)
    inputs, generator = torch.full((2, count + 3), -7), torch.Generator().manual_seed(seed)
    found, expected = (torch.full((count, 4), -7) for _ in range(2))
    for number in range(4):
        drawn = torch.randint(-1, 13, (count,), generator=generator)  # more than there are, either way
        theirs = next_rows_reference(spans, drawn, expected, number)
        if number == 3:
            keep_draft(spans, drawn, found, number)
            break
        mine = next_rows(spans, inputs, drawn, found, number)
        for name, one, other in zip(NextRows._fields, mine, theirs, strict=True):
            assert torch.equal(one, other), name
    assert torch.equal(found, expected)
    gone = found == -1
    assert (gone.long().diff(dim=1) >= 0).all() and gone[spans.slots == SLOTS].all()
    assert count < 100 or (0 < int(gone.sum()) < gone.numel() and found.max() == 10)


@pytest.mark.parametrize("drafts", [0, 1, 4])
@pytest.mark.parametrize("seed", range(6))
def test_what_stands_is_the_longest_agreeing_prefix_and_is_appended(seed, drafts):
    arguments = step(seed, drafts)
    rows = pack_rows(*arguments)
    drawn = torch.randint(-1, 3, (arguments[-1],), generator=torch.Generator().manual_seed(seed))
    states = [(arguments[4].clone(), arguments[5].clone()) for _ in range(2)]
    found = accept_drafts(arguments[0], rows, drawn, *states[0], drafts)
    expected = on_host(plain.accept_drafts, arguments[0], rows, drawn, *states[1], drafts)
    assert all(torch.equal(one, torch.from_numpy(other)) for one, other in zip(found, expected, strict=True))
    assert all(torch.equal(*pair) for pair in zip(*states, strict=True))


@pytest.mark.parametrize("spans", [[], [(0, 0, 3)], [(4, 11, 700), (1, 0, 1), (2, 300, 550)]], ids=len)
@pytest.mark.parametrize("drawing", [[], [2], [2, 4, 0, 3]], ids=len)
@pytest.mark.parametrize("size", [0, 5, 700])
def test_prompts_leave_what_torch_would_in_a_dozen_operations(spans, drawing, size):
    """spans: slots, first positions and ends of what prompts said. drawing: slots of rows behind two of decodes."""
    generator = torch.Generator().manual_seed(len(spans) + len(drawing))
    cpu = torch.device("cpu")
    slots = torch.tensor(drawing, dtype=torch.int64)
    drawn = torch.randint(-1, 9, (2 + len(slots),), generator=generator)
    hidden = torch.randn(len(drawn), 2 * max(1, size), generator=generator)[:, :size]
    owners = torch.tensor([slot for slot, start, end in spans for _ in range(start, end)], dtype=torch.int64)
    places = torch.tensor([place for _, *span in spans for place in range(*span)], dtype=torch.int64)
    said = torch.randint(0, 1000, (len(owners),), generator=generator)
    by_slot = {slot: end for slot, _, end in spans}
    ends = torch.tensor([by_slot.get(slot, 1) for slot in drawing], dtype=torch.int64)
    mine, theirs = (History(SLOTS, 1500, cpu) for _ in range(2))
    kept = torch.zeros(2, SLOTS + 1, size)
    states = kept[0] if size else None
    rows = torch.cat([torch.tensor([1, 3]), slots]), torch.cat([torch.tensor([7, 8]), ends]), drawn
    keep_prompts((owners, places, said), rows, 2, mine.tokens, mine.lengths, hidden, states)
    columns = [[part.numpy() for part in each] for each in ((owners, places, said), rows)]
    states = kept[1] if size else None
    plain.keep_prompts(*columns, 2, theirs.tokens.numpy(), theirs.lengths.numpy(), hidden, states)
    known = ~torch.isin(torch.arange(SLOTS + 1), slots)
    assert torch.equal(mine.tokens, theirs.tokens) and torch.equal(mine.lengths, theirs.lengths)
    assert torch.equal(kept[0], kept[1])
    assert mine.lengths[slots].tolist() == (ends + 1).tolist() and (mine.lengths[known] == 1).all()


@pytest.mark.parametrize(("drafts", "size"), [(0, 5), (1, 512), (4, 700)])
@pytest.mark.parametrize("seed", range(3))
def test_a_slot_is_left_with_the_state_of_its_last_row_that_stood(seed, drafts, size):
    arguments, generator = step(seed, drafts), torch.Generator().manual_seed(seed)
    slots, _, _, _, history, known, *_ = arguments
    rows = pack_rows(*arguments)
    drawn = torch.randint(-1, 3, (arguments[-1],), generator=generator)
    hidden = torch.randn(len(drawn), 2 * size, generator=generator)[:, :size]
    found, expected = (torch.full((SLOTS + 1, size), -7.0) for _ in range(2))
    accept_drafts(slots, rows, drawn, history.clone(), known.clone(), drafts, hidden, found)
    on_host(plain.accept_drafts, slots, rows, drawn, history, known, drafts, hidden, expected)
    assert torch.equal(found, expected)
    assert (found[1] == -7).all() and not (found[4] == -7).any()


def looked_up(tables: EmbeddingTables, dtype: torch.dtype, tokens: torch.Tensor, positions: torch.Tensor):
    """`Model.embed` for activations of any type, in tables."""
    embedded = tables.tokens[tokens.clamp(0, len(tables.tokens) - 1)].to(dtype) * tables.scale
    if tables.positions is not None:
        embedded += tables.positions[positions.long().clamp(max=len(tables.positions) - 1)].to(dtype)
    return embedded


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gpt2", "tiny-gemma3"])
def test_heads_read_states_beside_what_the_model_embeds(shape, dtype, monkeypatch):
    """Some tokens are none, some positions behind the last that is learned; a table may be wider than activations."""
    monkeypatch.setattr(draft_inputs, "BLOCK", 32)  # so that a row is not one program's
    model = create_model(SHAPES[shape], dtype=dtype)
    randomize(model, seed=0, std=0.1)
    tables, size = model.embedding_tables(), model.config.hidden_size
    longest = model.config.context_length
    for states in (torch.randn(5, size, dtype=dtype), torch.randn(5, size)):
        drafts = torch.tensor([[7, 0], [-1, 0], [319, 0], [5, 0], [5, 0]])
        positions = torch.tensor([0, 3, longest - 1, longest, longest + 5], dtype=torch.int32)
        found, embed = next_inputs(states, drafts[:, 0], positions, tables), partial(looked_up, tables, states.dtype)
        assert torch.equal(found, next_inputs_reference(states, drafts[:, 0], positions, embed))
        if states.dtype == dtype:
            embedded = model.embed(drafts[:, 0].clamp(min=0), positions.long().clamp(max=longest - 1))
            assert torch.equal(found, torch.cat([states, embedded], dim=1))


@pytest.mark.parametrize(("count", "together"), [(1, 1), (3, 1), (3, 3), (4, 4)])
@pytest.mark.parametrize("slots", [[2], [4, 0, SLOTS, 5]])
def test_drafts_begin_with_the_newest_token_and_are_drawn_where_they_stand(slots, count, together):
    history, known = state(3, 300)
    model = create_model(SHAPES["tiny-gpt2"])
    randomize(model, seed=0, std=0.1)
    states = torch.randn(SLOTS + 1, model.config.hidden_size)
    arguments = torch.tensor(slots, dtype=torch.int32), history, known, states
    found = first_inputs(*arguments, model.embedding_tables(), count=count, together=together)
    expected = first_inputs_reference(*arguments, model.embed, count=count, together=together)
    for name, mine, theirs in zip(found._fields, found, expected, strict=True):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), name
    newest = known[slots[0]] - 1
    assert torch.equal(found.joined[0, model.config.hidden_size :], model.embed(history[slots[0], newest], newest))
    assert found.positions[-1, -1] == known[slots[-1]] + count - 1 and found.slots[-1, -1] == slots[-1]


# -- between the host and the device -----------------------------------------------------------------------------------


def test_each_step_s_tokens_arrive_in_the_next_buffer_under_their_number():
    results = Results(600, torch.device("cpu"), timed=False)
    for number in range(1, 2 * Results.KEPT + 2):
        shape = ((1, 1), (5, 3), (200, 3))[number % 3]  # the last takes more than one pass of the kernel
        tokens = torch.arange(number, number + shape[0] * shape[1]).view(shape)
        results.send(tokens)
        found, landing = results.land(tokens.numel())
        landing.wait()
        assert landing.number == number
        assert found.tolist() == tokens.flatten().tolist()


def test_a_step_whose_tokens_were_not_sent_is_noticed_and_trial_steps_are_not_counted():
    results = Results(4, torch.device("cpu"), timed=False)
    for _ in range(3):
        results.send(torch.zeros(4, dtype=torch.int64))
    results.restart()
    results.send(torch.tensor([7]))
    results.land(1)[1].wait()
    with pytest.raises(RuntimeError, match="the tokens of step 2 are lost"):
        results.land(1)[1].wait()
    with pytest.raises(AssertionError, match="more tokens than a buffer has room for"):
        results.send(torch.zeros(5, dtype=torch.int64))


@pytest.mark.parametrize("count", [1, 5, 300])
def test_entries_are_written_to_their_places_and_no_others(count):
    tables = torch.zeros(2, 4, 100, dtype=torch.int64)
    places = torch.randperm(800)[:count]
    pages = torch.arange(1, count + 1)
    numbers = torch.cat([torch.tensor([count]), places, pages, torch.full((50,), 9)])  # the last ones are left over
    set_entries(tables, numbers)
    expected = torch.zeros(800, dtype=torch.int64)
    expected[places] = pages
    assert torch.equal(tables.flatten(), expected)
