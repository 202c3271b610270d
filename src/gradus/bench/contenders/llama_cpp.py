"""Another engine on the same work: llama.cpp on a processor, with the same weights, bits, threads and token ids.

A loop like a server's drives its low-level interface (llama-cpp-python): every step takes one token of each decoding
sequence and the prompts of new ones. Greedy, no end-of-sequence. Settings are its defaults: float16 keys and values,
its own choice of attention, matrices repacked where it has kernels for that.
"""

import ctypes
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gradus.bench.contenders.gguf_files import KV_BYTES, GGUFFiles, format_of, widths
from gradus.bench.declare.declaration import GGUF_FORMATS, quantized
from gradus.bench.measure.drive import ContenderFailed, Run
from gradus.bench.workloads import Arrival
from gradus.device.threads import use
from gradus.doctor import machine
from gradus.models import kv_bytes_per_token, parameter_count

LARGEST_STEP = 2048  # tokens: its own default
CONTEXT_STEP = 256  # a sequence's room is a multiple of it


@cache
def library() -> Any:
    """Import llama_cpp and silence its log. Raises ContenderFailed if it is not installed."""
    try:
        import llama_cpp
    except ImportError as error:
        raise ContenderFailed("llama-cpp-python is not installed") from error
    llama_cpp.llama_log_set(_silence(llama_cpp), ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp


@cache  # llama.cpp keeps the address alone
def _silence(llama: Any) -> Any:
    return llama.llama_log_callback(lambda level, text, data: None)


@dataclass
class Reading:
    """A sequence under way. index: of its arrival. pending: tokens not read yet. stored: the number of tokens read."""

    index: int
    pending: list[int]
    stored: int = 0


class Decoder:
    """A model in llama.cpp, and a context for `count` sequences of `room` tokens each. Raises ContenderFailed."""

    def __init__(self, path: Path, count: int, room: int, vocab_size: int) -> None:
        self.llama, self.vocab_size, self.threads = library(), vocab_size, use(None)
        self.model = _load(self.llama, path)
        params = self.llama.llama_context_default_params()
        params.n_ctx, params.n_seq_max = count * room, count
        params.n_batch = self.step_size = min(LARGEST_STEP, count * room)
        params.n_threads = params.n_threads_batch = self.threads
        self.context = self.llama.llama_init_from_model(self.model, params)
        if not self.context:
            self.llama.llama_model_free(self.model)
            raise ContenderFailed("llama.cpp made no context")
        self.batch = self.llama.llama_batch_init(self.step_size, 0, 1)
        self.token_ids, self.positions, self.wanted = (
            np.ctypeslib.as_array(pointer, (self.step_size,))
            for pointer in (self.batch.token, self.batch.pos, self.batch.logits)
        )
        np.ctypeslib.as_array(self.batch.n_seq_id, (self.step_size,))[:] = 1  # each token is of one sequence

    def step(self, running: Mapping[int, Reading]) -> dict[int, int]:
        """Read pending tokens, decodes first, up to a step's size.

        running: by llama.cpp's sequence number. Returns the likeliest next token of each fully read sequence.
        """
        rows, due = 0, []
        for number in sorted(running, key=lambda number: (len(running[number].pending) > 1, number)):
            sequence = running[number]
            count = min(len(sequence.pending), self.step_size - rows)
            if count == 0:
                break
            self._put(rows, number, sequence.stored, sequence.pending[:count])
            del sequence.pending[:count]
            sequence.stored += count
            rows += count
            if not sequence.pending:
                self.wanted[rows - 1] = 1
                due.append(number)
        self.batch.n_tokens = rows
        if code := self.llama.llama_decode(self.context, self.batch):
            raise ContenderFailed(f"llama_decode returned {code}")
        return dict(zip(due, self._likeliest(len(due)), strict=True))

    def _put(self, row: int, number: int, start: int, token_ids: Sequence[int]) -> None:
        """Put a sequence's tokens, from position `start` on, into the batch from `row` on."""
        end = row + len(token_ids)
        self.token_ids[row:end] = token_ids
        self.positions[row:end] = range(start, start + len(token_ids))
        self.wanted[row:end] = 0
        for each in range(row, end):
            self.batch.seq_id[each][0] = number

    def _likeliest(self, count: int) -> list[int]:
        """The likeliest token of each row with logits, in batch order."""
        if count == 0:
            return []
        logits = np.ctypeslib.as_array(self.llama.llama_get_logits(self.context), (count, self.vocab_size))
        return logits.argmax(axis=1).tolist()

    def forget(self, number: int | None = None) -> None:
        """Drop one sequence from the cache, or all."""
        memory = self.llama.llama_get_memory(self.context)
        if number is None:
            self.llama.llama_memory_clear(memory, False)
        else:
            self.llama.llama_memory_seq_rm(memory, number, -1, -1)

    def close(self) -> None:
        self.llama.llama_batch_free(self.batch)
        self.llama.llama_free(self.context)
        self.llama.llama_model_free(self.model)


def _load(llama: Any, path: Path) -> Any:
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    # Its AMX path has crashed in the first step; without repacked buffers it is not taken.
    params.use_extra_bufts = "amx" not in machine.hardware()["instruction sets"]
    model = llama.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise ContenderFailed("llama.cpp did not load the file that was written for it")
    return model


def _built_with(llama: Any) -> str:
    """The processor features it was compiled for, as it reports them: "AVX2 AVX512 …"."""
    said = llama.llama_print_system_info().decode().replace(":", "|").split("|")
    return " ".join(part.split("=")[0].strip() for part in said if part.strip().endswith("= 1"))


# -- the contender -----------------------------------------------------------------------------------------------------


class LlamaCpp:
    """Up to `batch` sequences of `context` tokens at once. name: "llama.cpp", or with a scheme, "llama.cpp:int8"."""

    def __init__(self, name: str, files: GGUFFiles, context: int, batch: int) -> None:
        self.name, self.files, self.batch = name, files, batch
        self.scheme = quantized(name)[1]
        self.room = -(-context // CONTEXT_STEP) * CONTEXT_STEP
        self.cache_bytes = batch * self.room * kv_bytes_per_token(files.config, KV_BYTES)
        self.needed_bytes = self.cache_bytes
        if self.scheme in GGUF_FORMATS:  # for any other, `build` says that there is no file
            self.needed_bytes += int(parameter_count(files.config) * widths(files.config, self.scheme).weight)
        self.about = ""
        self.decoder: Decoder | None = None

    def build(self) -> None:
        llama = library()  # fails before a file is written
        path = self.files.path(self.scheme)
        self.file_bytes = path.stat().st_size
        self.decoder = Decoder(path, self.batch, self.room, self.files.config.vocab_size)
        self.about = (
            f"{format_of(self.scheme).name} of {self.file_bytes / 1e6:.0f} MB in llama-cpp-python {llama.__version__}, "
            f"{self.decoder.threads} threads, keys and values F16, compiled for {_built_with(llama)}"
        )

    def run(self, arrivals: Sequence[Arrival], *, watch_memory: bool = False) -> Run:
        assert self.decoder is not None, "built before it runs"
        if any(arrival.follows is not None for arrival in arrivals):
            raise ContenderFailed("conversations are not driven through llama.cpp")
        self.decoder.forget()
        waiting = deque(sorted(range(len(arrivals)), key=lambda index: arrivals[index].at))
        running: dict[int, Reading] = {}
        times: list[list[float]] = [[] for _ in arrivals]
        steps, start = 0, time.perf_counter()
        while waiting or running:
            now = time.perf_counter() - start
            while waiting and len(running) < self.batch and arrivals[waiting[0]].at <= now:
                index = waiting.popleft()
                number = min(set(range(self.batch)) - running.keys())
                running[number] = Reading(index, list(arrivals[index].prompt))
            if not running:
                time.sleep(max(0.0, arrivals[waiting[0]].at - now))
                continue
            drawn = self.decoder.step(running)
            now, steps = time.perf_counter() - start, steps + 1
            for number, token in drawn.items():
                index = running[number].index
                running[number].pending = [token]
                times[index].append(now)
                if len(times[index]) == arrivals[index].max_tokens:
                    self.decoder.forget(number)
                    del running[number]
        run = Run(arrivals, times, steps=steps, peak_bytes=self.file_bytes + self.cache_bytes)
        run.check()
        return run

    def close(self) -> None:
        if self.decoder is not None:
            self.decoder.close()
        self.decoder = None
