"""llama.cpp as a contender, through a stand-in for its library; and through the library where it is installed."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gradus.bench import __main__ as plain
from gradus.bench import registry
from gradus.bench.contenders import llama_cpp
from gradus.bench.contenders.gguf_files import GGUFFiles
from gradus.bench.contenders.llama_cpp import Decoder, LlamaCpp, Reading
from gradus.bench.contenders.workbench import Room, Workbench
from gradus.bench.declare.declaration import LLAMA_CPP
from gradus.bench.declare.suites import CPU_DECODE
from gradus.bench.measure.drive import ContenderFailed
from gradus.bench.record import results
from gradus.bench.record.prose import speedup
from gradus.bench.record.results import Cell, Entry
from gradus.bench.workloads import Arrival, burst, conversations
from gradus.device.threads import use
from gradus.loading import Checkpoint
from gradus.models import create_model, randomize, read_config
from tests.bench.conftest import TINY
from tests.loading.builders import CONFIGS
from tests.phases.conftest import NaiveAttention

VOCABULARY = 320


class Batch(ctypes.Structure):
    """llama_batch, as far as it is used."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


def successor(tokens: list[int]) -> int:
    """The stand-in's model: the next token depends on every one before it, and on their order."""
    return sum((place + 1) * token for place, token in enumerate(tokens)) % VOCABULARY


class FakeLlama:
    """llama_cpp's functions over a model that adds. It minds what llama.cpp minds: positions, room, and size of a step.

    steps: the number of tokens of each sequence, for every llama_decode.
    """

    __version__ = "0.0"

    def __init__(self) -> None:
        self.steps: list[dict[int, int]] = []
        self.stored: dict[int, list[int]] = {}
        self.open = 0
        self.params = SimpleNamespace()

    def llama_model_default_params(self):
        return SimpleNamespace(n_gpu_layers=-1, use_extra_bufts=True)

    def llama_context_default_params(self):
        return SimpleNamespace(n_ctx=512, n_batch=2048, n_seq_max=1, n_threads=4, n_threads_batch=4)

    def llama_model_load_from_file(self, path, params):
        self.open += 1
        self.loaded = path.decode()
        return os.path.getsize(path)

    def llama_init_from_model(self, model, params):
        self.open += 1
        self.params = params
        return 1

    def llama_batch_init(self, size, embedding, sequences):
        self.open += 1
        kinds = {"token": ctypes.c_int32, "pos": ctypes.c_int32, "n_seq_id": ctypes.c_int32, "logits": ctypes.c_int8}
        self.arrays = {name: (kind * size)() for name, kind in kinds.items()}
        ids = [(ctypes.c_int32 * sequences)() for _ in range(size)]
        self.seq_ids = (ctypes.POINTER(ctypes.c_int32) * size)(*(ctypes.cast(row, POINTER) for row in ids)), ids
        pointers = {name: ctypes.cast(array, ctypes.POINTER(kinds[name])) for name, array in self.arrays.items()}
        return Batch(n_tokens=0, seq_id=ctypes.cast(self.seq_ids[0], ctypes.POINTER(POINTER)), **pointers)

    def llama_decode(self, context, batch):
        assert 0 < batch.n_tokens <= self.params.n_batch
        taken, rows = {}, []
        for row in range(batch.n_tokens):
            assert batch.n_seq_id[row] == 1
            number = batch.seq_id[row][0]
            tokens = self.stored.setdefault(number, [])
            assert batch.pos[row] == len(tokens) < self.params.n_ctx // self.params.n_seq_max
            assert number < self.params.n_seq_max
            tokens.append(batch.token[row])
            taken[number] = taken.get(number, 0) + 1
            if batch.logits[row]:
                rows.append(np.eye(VOCABULARY, dtype=np.float32)[successor(tokens)])
        self.steps.append(taken)
        self.logits = np.ascontiguousarray(rows, dtype=np.float32)
        return 0

    def llama_get_logits(self, context):
        return self.logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    def llama_get_memory(self, context):
        return context

    def llama_memory_clear(self, memory, whole):
        self.stored.clear()

    def llama_memory_seq_rm(self, memory, number, start, end):
        assert (start, end) == (-1, -1)
        del self.stored[number]

    def llama_print_system_info(self):
        return b"CPU : AVX2 = 1 | AVX512 = 1 | AMX_INT8 = 0 | OPENMP = 1 | "

    def _closed(self, what):
        self.open -= 1

    llama_free = llama_model_free = llama_batch_free = _closed


POINTER = ctypes.POINTER(ctypes.c_int32)


@pytest.fixture
def llama(monkeypatch) -> FakeLlama:
    fake = FakeLlama()
    monkeypatch.setattr(llama_cpp, "library", lambda: fake)
    return fake


@contextmanager
def built(bench: Workbench, room: Room, contender: str = LLAMA_CPP) -> Iterator[LlamaCpp]:
    peer = bench.contender(contender, room)
    peer.build()
    try:
        yield peer
    finally:
        peer.close()


def finish(decoder: Decoder, sequences: dict[int, Reading], count: int) -> dict[int, list[int]]:
    """`count` tokens after each prompt."""
    said: dict[int, list[int]] = {number: [] for number in sequences}
    while any(len(tokens) < count for tokens in said.values()):
        due = {number: sequences[number] for number, tokens in said.items() if len(tokens) < count}
        for number, token in decoder.step(due).items():
            said[number].append(token)
            sequences[number].pending = [token]
    return said


def alone(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(successor(tokens))
    return tokens[len(prompt) :]


# -- the loop ----------------------------------------------------------------------------------------------------------


def test_sequences_in_one_batch_get_the_tokens_that_each_gets_alone(bench, llama):
    decoder = Decoder(bench.gguf.path(None), 3, 256, VOCABULARY)
    prompts = {0: [5, 6, 7], 1: list(range(40)), 2: [9]}
    said = finish(decoder, {number: Reading(number, list(prompt)) for number, prompt in prompts.items()}, 4)
    assert said == {number: alone(prompt, 4) for number, prompt in prompts.items()}
    assert llama.steps == [{2: 1, 0: 3, 1: 40}, *[{0: 1, 1: 1, 2: 1}] * 3]


def test_a_prompt_that_is_longer_than_a_step_is_read_in_pieces(bench, llama, monkeypatch):
    monkeypatch.setattr(llama_cpp, "LARGEST_STEP", 32)
    decoder = Decoder(bench.gguf.path(None), 2, 256, VOCABULARY)
    prompts = {0: [3, 1], 1: [token % 300 for token in range(100)]}
    said = finish(decoder, {number: Reading(number, list(prompt)) for number, prompt in prompts.items()}, 6)
    assert said == {number: alone(prompt, 6) for number, prompt in prompts.items()}
    assert llama.steps[:5] == [{0: 2, 1: 30}, {0: 1, 1: 31}, {0: 1, 1: 31}, {0: 1, 1: 8}, {0: 1, 1: 1}]


def test_every_token_is_timed_and_a_place_that_is_free_is_taken(bench, llama):
    work = burst(5, (4, 8), (1, 6))
    with built(bench, Room(work.longest, 2)) as peer:
        run = peer.run(work.arrivals(VOCABULARY))
        first = llama.steps[:]
        peer.run(work.arrivals(VOCABULARY))  # a second run finds nothing of the first
    assert [len(times) for times in run.token_times] == [job.output for job in work.jobs]
    assert all(times == sorted(times) and times[0] > 0 for times in run.token_times)
    assert max(map(len, first)) == 2 and run.steps == len(first)
    assert any(len(set(step.values())) == 2 for step in first[1:]), "prompts are read among decodes"
    assert llama.open == 0


def test_requests_wait_until_their_time_has_come(bench, llama):
    with built(bench, Room(64, 2)) as peer:
        run = peer.run([Arrival(0.05, (1, 2), 2), Arrival(0.0, (3,), 1)])
    assert run.token_times[0][0] >= 0.05 > run.token_times[1][0]


def test_conversations_are_refused(bench, llama):
    with built(bench, Room(64, 2)) as peer, pytest.raises(ContenderFailed, match="conversations"):
        peer.run(conversations(1, 2, 4, 2, 2, 0.0).arrivals(VOCABULARY))


def test_it_gets_our_threads_and_room_for_exactly_what_is_asked_and_says_so(bench, llama):
    with built(bench, Room(300, 4), "llama.cpp:int8") as peer:
        about = peer.about
    assert llama.params.n_threads == llama.params.n_threads_batch == use(None)
    assert (llama.params.n_seq_max, llama.params.n_ctx) == (4, 4 * 512)
    size = bench.gguf.path("int8").stat().st_size
    assert about == (
        f"Q8_0 of {size / 1e6:.0f} MB in llama-cpp-python 0.0, {use(None)} threads, keys and values F16, "
        "compiled for AVX2 AVX512 OPENMP"
    )
    assert llama.loaded.endswith("Q8_0.gguf")


def test_a_step_that_fails_is_told(bench, llama, monkeypatch):
    monkeypatch.setattr(llama, "llama_decode", lambda context, batch: 1)
    with built(bench, Room(64, 1)) as peer, pytest.raises(ContenderFailed, match="llama_decode returned 1"):
        peer.run([Arrival(0.0, (1, 2), 2)])


# -- in the suite ------------------------------------------------------------------------------------------------------


def test_decoding_is_measured_for_every_scheme_and_the_peer_beside_each(llama, known_machine, tmp_path):
    assert plain.main([CPU_DECODE, "--quick", "--repeats", "1", "--out", str(tmp_path), *TINY]) == 0
    (run,) = results.read(results.path(tmp_path, "cpu", CPU_DECODE)).runs
    wanted = registry.load(CPU_DECODE).table("decode").contenders
    for cell in run.cells:
        assert [entry.contender for entry in cell.entries] == list(wanted)
        for entry in cell.entries:
            assert entry.skipped is None and entry.prediction, entry
            (sample,) = entry.samples
            step = entry.prediction["bytes"] / entry.prediction["steps"]
            share = 100 * step / (1e-3 * sample["itl_ms"]["p50"]) / 10e9
            assert sample["memory_share"] == pytest.approx(share, rel=1e-3)
    assert run.settings["llama.cpp:int4"].startswith("Q4_0 of")
    assert run.settings["final:int4"].startswith("int4 weights")
    predicted = {entry.contender: entry.prediction["bytes"] for entry in run.cells[0].entries}
    assert predicted["final"] > predicted["final:int8"]  # so small a model's int4 is mostly padding
    assert predicted["llama.cpp"] > predicted["llama.cpp:int8"] > predicted["llama.cpp:int4"]
    text = (tmp_path / "cpu" / CPU_DECODE / "report.md").read_text()
    assert "| llama.cpp Q4_0 |" in text and "| final engine, int8 |" in text and "memory's rate" in text


def test_where_it_is_not_installed_the_others_are_measured(known_machine, monkeypatch, tmp_path):
    def missing():
        raise ContenderFailed("llama-cpp-python is not installed")

    monkeypatch.setattr(llama_cpp, "library", missing)
    contenders = ["--contender", "final:int8", "--contender", "llama.cpp:int8"]
    assert plain.main([CPU_DECODE, "--quick", "--out", str(tmp_path), *contenders, *TINY]) == 0
    (run,) = results.read(results.path(tmp_path, "cpu", CPU_DECODE)).runs
    ours, theirs = run.cells[0].entries
    assert ours.samples and not theirs.samples and "llama-cpp-python is not installed" in theirs.skipped


def test_in_a_quantized_run_no_contender_has_a_scheme_of_its_own_and_there_is_no_peer(llama, known_machine, tmp_path):
    arguments = [CPU_DECODE, "--quick", "--repeats", "1", "--quantize", "int8", "--out", str(tmp_path)]
    assert plain.main([*arguments, *TINY]) == 0
    (run,) = results.read(results.path(tmp_path, "cpu", CPU_DECODE)).runs
    assert run.dtype == "int8 weights, float32" and run.settings["quantize"] == "int8"
    for cell in run.cells:
        found = {entry.contender: entry for entry in cell.entries}
        assert list(found) == ["final", "final:int8", "final:int4", "final-kernels-graphs"]
        assert found["final"].samples and found["final-kernels-graphs"].samples
        for contender in ("final:int8", "final:int4"):
            assert not found[contender].samples and "are quantized already (int8)" in found[contender].skipped


def test_speed_ups_count_from_the_peer_of_the_same_width():
    def entry(name: str, gap: float) -> Entry:
        return Entry(name, samples=[{"itl_ms": {"p50": gap}}])

    table = registry.load(CPU_DECODE).table("decode")
    cell = Cell("decode", "one alone", 0, 1, {})
    gaps = {"final": 10, "final:int8": 6, "final-kernels-graphs": 40, "llama.cpp": 20, "llama.cpp:int8": 9}
    cell.entries = [entry(name, gap) for name, gap in gaps.items()]
    found = {one.contender: speedup(one, cell, None, table) for one in cell.entries}
    assert found == pytest.approx(
        {"final": 2.0, "final:int8": 1.5, "final-kernels-graphs": 0.5, "llama.cpp": 1.0, "llama.cpp:int8": 1.0}
    )


# -- the real one ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", CONFIGS)
def test_llama_cpp_computes_what_we_compute(family):
    """The same weights in its format give the same logits, up to float16: two sequences per batch, and decodes."""
    pytest.importorskip("llama_cpp")
    config = read_config(CONFIGS[family])
    model = create_model(config)
    randomize(model, 0, std=0.2)  # so that scores differ, and it shows which positions are attended to
    files = GGUFFiles(Checkpoint(family, None, config, None, None, None, 0), model)
    decoder = Decoder(files.path(None), 2, 256, config.vocab_size)
    prompts = {0: [3, 141, 59, 26, 53], 1: [7] * 40}
    running = {number: Reading(number, list(prompt)) for number, prompt in prompts.items()}
    for _ in range(3):
        drawn = decoder.step(running)
        logits = np.ctypeslib.as_array(
            decoder.llama.llama_get_logits(decoder.context), (len(drawn), config.vocab_size)
        ).copy()
        for row, (number, token) in zip(logits, drawn.items(), strict=True):
            tokens = torch.tensor(prompts[number])
            with torch.inference_mode():
                hidden = model(tokens, torch.arange(len(tokens)), NaiveAttention(model))
                expected = model.logits(hidden[-1:])[0].float()
            scale = expected.abs().max().item()
            torch.testing.assert_close(torch.from_numpy(row), expected, rtol=0, atol=0.02 * scale)
            prompts[number].append(token)
            running[number].pending = [token]
    decoder.close()
