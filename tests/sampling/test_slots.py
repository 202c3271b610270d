"""The tables hold what the slots' owners ask for, and nothing of the owners before them."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradus.engine.plan import Admission
from gradus.engine.request import MAX_EOS_TOKENS, ModelLimits, Request, SamplingParams
from gradus.errors import ConfigError
from gradus.kernels.sampling.seen_words import COUNT, ENTRY, ENTRY_SHIFT, FULL, IN_PROMPT
from gradus.sampling import slots as slots_module
from gradus.sampling.slots import SlotTable

VOCAB = 37
LIMITS = ModelLimits(VOCAB, 64, eos_token_ids=(2, 9))
CPU = torch.device("cpu")


def admission(slot: int, prompt=(5, 6, 5), output=(), index=0, **params) -> Admission:
    request = Request.create(f"r{slot}", prompt, SamplingParams(**params), LIMITS)
    return Admission(slot, request, index, (*prompt, *output))


def table(*admissions: Admission, slots: int | None = None) -> SlotTable:
    made = SlotTable(VOCAB, CPU, slots)
    made.admit(admissions)
    return made


def entries(of: SlotTable, slot: int) -> list[tuple[int, float, int]]:
    count = of.entries[slot]
    columns = (column[slot, :count].tolist() for column in (of.bias_tokens, of.bias_values, of.banned_until))
    return list(zip(*columns, strict=True))


def seen(of: SlotTable, slot: int) -> dict[int, int]:
    """The tokens that are not 0 there."""
    assert of.seen is not None
    return {token: bits for token, bits in enumerate(of.seen[slot].tolist()) if bits}


def number_of_entry(word: int) -> int:
    return word >> ENTRY_SHIFT & ENTRY


def test_rows_are_off_until_they_have_an_owner():
    off = SlotTable(VOCAB, CPU, slots=3)
    assert off.rows >= 3 and off.seen is None and off.masks is None and off.plain.all()
    assert set(off.temperatures.tolist()) == {0} and set(off.top_k.tolist()) == {VOCAB}
    assert set(off.top_p.tolist()) == {math.inf} and set(off.min_p.tolist()) == {0}
    assert set(off.repetition.tolist()) == {1} and set(off.reports.tolist()) == {-1}
    for column in (off.adjusts, off.entries, off.frequency, off.presence):
        assert not column.any()


def test_a_step_of_mixed_newcomers_fills_each_ones_row():
    made = table(
        admission(2, seed=2**63 - 1, temperature=0.5, top_k=4),
        admission(0, seed=3, temperature=1.5, top_p=0.25, logprobs=5),
        admission(1, min_p=0.25, repetition_penalty=1.5, frequency_penalty=-0.5, presence_penalty=2, logprobs=0),
        slots=4,
    )
    assert made.seeds[0] == 3 and made.seeds[2] == 2**63 - 1
    assert made.temperatures[:4].tolist() == [1.5, 0, 0.5, 0]
    assert made.top_k[:4].tolist() == [VOCAB, VOCAB, 4, VOCAB]
    assert made.top_p[:4].tolist() == [0.25, math.inf, math.inf, math.inf]
    assert made.min_p[:4].tolist() == [0, 0.25, 0, 0]
    assert made.repetition[:4].tolist() == [1, 1.5, 1, 1]
    assert made.frequency[:4].tolist() == [0, -0.5, 0, 0]
    assert made.presence[:4].tolist() == [0, 2, 0, 0]
    assert made.adjusts[:4].tolist() == made.adjusting[:4].tolist() == [0, 1, 0, 0]
    assert made.reports[:4].tolist() == made.reporting[:4].tolist() == [5, 0, -1, -1]
    assert made.drawing[:4].tolist() == made.narrowing[:4].tolist() == [True, False, True, False]
    assert made.ranking[:4].tolist() == [True, False, True, False]
    assert made.plain[:4].tolist() == [False, False, False, True]


def test_seeds_keep_their_64_bits_as_a_signed_number():
    one = admission(0, seed=1, index=1)
    assert table(one).seeds[0].item() == (1 + 0x9E3779B97F4A7C15) - 2**64


@pytest.mark.parametrize(
    "params", [dict(top_k=-1), dict(top_k=VOCAB), dict(top_k=10**12), dict(top_p=1.0), dict(top_p=1 - 1e-12)]
)
def test_what_keeps_every_token_is_off(params):
    made = table(admission(0, temperature=1, **params))
    assert made.plain[0] and made.top_k[0] == VOCAB and made.top_p[0] == math.inf


def test_min_p_alone_narrows_without_ranking():
    made = table(admission(0, temperature=1, min_p=0.5), admission(1, min_p=0.5))
    assert made.narrowing[:2].tolist() == [True, False] and not made.ranking.any()


def test_a_temperature_that_float32_cannot_hold_is_greedy():
    made = table(admission(0, temperature=1e-40, top_k=2), admission(1, temperature=1e-37))
    assert made.temperatures[0] == 0 and not made.drawing[0] and not made.narrowing[0]
    assert made.temperatures[1] > 0 and made.drawing[1]


def test_biases_last_and_bans_of_stop_tokens_end():
    made = table(admission(0, logit_bias={4: 2.5, 11: -100}, min_tokens=3, stop_token_ids=[7]), admission(1))
    assert entries(made, 0) == [(4, 2.5, 0), (11, -100, 0), (2, 0, 3 + 3), (7, 0, 3 + 3), (9, 0, 3 + 3)]
    assert entries(made, 1) == []
    assert made.adjusting[:2].tolist() == [True, False]
    assert {token: number_of_entry(bits) for token, bits in seen(made, 0).items() if number_of_entry(bits)} == {
        4: 1, 11: 2, 2: 3, 7: 4, 9: 5,
    }  # fmt: skip


def test_a_stop_token_with_a_bias_has_one_entry():
    made = table(admission(0, logit_bias={4: 2.5, 7: 1.5}, min_tokens=3, stop_token_ids=[7], ignore_eos=True))
    assert entries(made, 0) == [(4, 2.5, 0), (7, 1.5, 3 + 3)]


def test_min_tokens_without_a_stop_token_adjusts_nothing():
    assert table(admission(0, min_tokens=3, ignore_eos=True)).plain[0]


def test_tokens_known_after_a_preemption_count_anew():
    made = table(admission(1, prompt=(5, 6, 5), output=(6, 8, 8, 8), presence_penalty=1.0, logit_bias={8: 1.0}))
    assert seen(made, 1) == {5: IN_PROMPT, 6: IN_PROMPT | 1, 8: 1 << ENTRY_SHIFT | 3}


def test_tokens_are_kept_for_slots_that_adjust_alone():
    assert table(admission(0, temperature=1.0)).seen is None
    made = table(admission(0, temperature=1.0), admission(3, repetition_penalty=2.0))
    assert seen(made, 0) == {} and seen(made, 3) == {5: IN_PROMPT, 6: IN_PROMPT}


def test_what_is_sampled_is_counted_and_no_token_is_none():
    made = table(admission(0, presence_penalty=1.0), admission(1, presence_penalty=1.0))
    made.record(torch.tensor([0, 1]), torch.tensor([5, -1]))
    made.record(torch.tensor([0, 1]), torch.tensor([0, 36]))
    made.record(torch.tensor([0]), torch.tensor([5]))
    assert seen(made, 0) == {0: 1, 5: IN_PROMPT | 2, 6: IN_PROMPT}
    assert seen(made, 1) == {5: IN_PROMPT, 6: IN_PROMPT, 36: 1}
    assert made.seen[0, 5].item() & COUNT == 2


def test_a_token_is_counted_until_its_bits_are_full_however_it_comes(monkeypatch):
    """One more occurrence would become the number of the token's entry. A context may be longer than they count."""
    made = table(admission(0, frequency_penalty=0.1, logit_bias={5: 2.0}))
    made.seen[0, 5] += FULL - 2
    for _ in range(20):
        made.record(torch.tensor([0]), torch.tensor([5]))
    assert seen(made, 0)[5] == IN_PROMPT | 1 << ENTRY_SHIFT | FULL
    assert FULL + 64 <= COUNT  # a step may count a token once per draft
    monkeypatch.setattr(slots_module, "FULL", 3)
    again = table(admission(0, output=(5,) * 9 + (6,), frequency_penalty=0.1, logit_bias={5: 2.0}))
    assert seen(again, 0) == {5: IN_PROMPT | 1 << ENTRY_SHIFT | 2, 6: IN_PROMPT | 1}


DEMANDING = dict(
    temperature=1.0, top_k=3, top_p=0.5, min_p=0.1, repetition_penalty=2.0, frequency_penalty=1.0, presence_penalty=1.0,
    logit_bias={1: 2.0, 2: 3.0}, min_tokens=2, logprobs=4, seed=8,
)  # fmt: skip


@pytest.mark.parametrize("params", [{}, dict(temperature=0.5), dict(presence_penalty=1.0, logprobs=1)])
def test_nothing_of_an_earlier_owner_remains(params):
    newcomer = admission(0, seed=4, **params)
    made, fresh = table(admission(0, output=(3, 3), **DEMANDING)), table(newcomer)
    made.admit([newcomer])
    device = "seeds temperatures top_k top_p min_p repetition frequency presence adjusts reports entries"
    host = "adjusting drawing ranking narrowing reporting plain"
    for name in f"{device} {host}".split():
        assert getattr(made, name)[0] == getattr(fresh, name)[0], name
    assert entries(made, 0) == []
    if made.adjusting[0]:
        assert seen(made, 0) == seen(fresh, 0)


def test_the_last_of_a_slot_s_owners_in_a_step_has_it():
    made = table(admission(0, presence_penalty=1.0, prompt=(8, 8)), admission(0, presence_penalty=2.0))
    assert made.presence[0] == 2 and seen(made, 0) == {5: IN_PROMPT, 6: IN_PROMPT}


def test_a_table_of_no_stated_size_grows_and_keeps_what_it_holds():
    made = table(admission(0, output=(3,), **DEMANDING))
    before = entries(made, 0), seen(made, 0), made.seeds[0].item(), made.top_p[0].item()
    made.allocate_masks()[0] = 5
    made.admit([admission(40, temperature=0.75, frequency_penalty=1.0)])
    assert made.rows > 40 and made.masks.shape[0] == made.rows and set(made.masks[0].tolist()) == {5}
    assert (entries(made, 0), seen(made, 0), made.seeds[0].item(), made.top_p[0].item()) == before
    assert made.narrowing[0] and made.reporting[0] == 4 and made.plain[1:40].all() and not made.plain[40]
    assert made.temperatures[40] == 0.75 and seen(made, 40) == {5: IN_PROMPT, 6: IN_PROMPT}
    assert made.top_k[20] == VOCAB and made.top_p[20] == math.inf


def test_a_table_of_stated_size_stays_where_it_is():
    made = SlotTable(VOCAB, CPU, slots=5)
    made.allocate()
    made.allocate_masks()
    names = [name for name, value in vars(made).items() if isinstance(value, torch.Tensor)]
    places = {name: getattr(made, name).data_ptr() for name in names}
    made.admit([admission(slot, **DEMANDING) for slot in range(5)])
    assert {name: getattr(made, name).data_ptr() for name in names} == places and len(names) > 15
    with pytest.raises(IndexError, match="slot 50"):
        made.admit([admission(50)])


class Operations(TorchDispatchMode):
    """Counts what is asked of the device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("params", "copies"), [({}, 1), (DEMANDING, 4)], ids=["plain", "demanding"])
def test_admissions_cost_as_many_copies_and_launches_however_many_they_are(params, copies, monkeypatch):
    sent, launches = [], []
    for name in ("upload", "upload_parts"):
        send = getattr(slots_module, name)
        monkeypatch.setattr(slots_module, name, lambda *args, send=send: sent.append(args) or send(*args))
    for count in (2, 40):
        made = SlotTable(VOCAB, CPU, slots=40)
        made.allocate()
        with Operations() as operations:
            made.admit([admission(slot, output=(3, 4), **params) for slot in range(count)])
        launches.append(operations.count)
    assert len(sent) == 2 * copies
    assert launches[0] == launches[1] < (8 if copies == 1 else 50)


def test_no_admission_costs_nothing():
    made = SlotTable(VOCAB, CPU, slots=4)
    with Operations() as operations:
        made.admit([])
    assert operations.count == 0


def test_more_end_tokens_than_there_is_room_for_are_refused():
    ModelLimits(100, 10, tuple(range(MAX_EOS_TOKENS)))
    with pytest.raises(ConfigError, match="at most 64 end-of-sequence tokens, got 65"):
        ModelLimits(100, 10, tuple(range(MAX_EOS_TOKENS + 1)))


def test_a_list_as_long_as_a_request_may_make_it_has_room():
    limits = ModelLimits(5000, 64, tuple(range(MAX_EOS_TOKENS)))
    bias = dict.fromkeys(range(100, 1124), 1.0)
    params = SamplingParams(logit_bias=bias, stop_token_ids=list(range(2000, 2064)), min_tokens=1)
    made = SlotTable(5000, CPU, slots=2)
    made.admit([Admission(1, Request.create("r", [1], params, limits), 0, (1,))])
    assert made.entries[1] == made.bias_tokens.shape[1] == 1024 + 64 + 64
    assert (made.banned_until[1] == 0).tolist() == [True] * 1024 + [False] * 128
    numbers = [number_of_entry(word) for word in seen(made, 1).values()]
    assert sorted(filter(None, numbers)) == list(range(1, 1024 + 64 + 64 + 1))
    assert made.seen[1, 100] == 1 << ENTRY_SHIFT and made.seen[1, 1] == IN_PROMPT | 1026 << ENTRY_SHIFT
