"""Engines that run the workload, each behind the same three functions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gradus.bench.contenders.llama_cpp import Decoder, Reading
from gradus.bench.contenders.workbench import forget_prefixes
from gradus.bench.measure.drive import ContenderFailed
from gradus.bench.speedrun.rules import CONTEXT, REQUESTS
from gradus.bench.speedrun.workload import Ask
from gradus.config.options import FINAL
from gradus.engine.request import Request, SamplingParams
from gradus.exercises.solution import files_in
from gradus.loading import Checkpoint, Progress
from gradus.phases import find
from gradus.text.llm import LLM

Answers = list[list[int]]


class Contestant(Protocol):
    """An engine under test. Every function raises ContenderFailed where the engine fails.

    kind: "final", "phase", "yours", "peer" or "program". facts: what a log says about it, known once it is loaded.
    """

    name: str
    kind: str
    facts: dict[str, Any]

    def load(self) -> None:
        """Do all that needs to be done once: load weights, compile, allocate."""

    def forget(self) -> None:
        """Forget every earlier request, with its tokens and cached prefixes."""

    def run(self, asks: Sequence[Ask]) -> Answers:
        """Submit all requests, run them to their ends, and return their tokens in the requests' order."""

    def close(self) -> None: ...


class EngineContestant:
    """An engine of ours, or a phase with a reader's functions. settings: those given, as `LLM` takes them."""

    def __init__(self, checkpoint: Checkpoint, settings: Mapping[str, Any], progress: Progress | None = None) -> None:
        self.checkpoint, self.progress = checkpoint, progress
        self.settings = {"context_length": min(CONTEXT, checkpoint.config.context_length), **settings}
        phase, impl = settings.get("phase"), settings.get("impl")
        self.kind = "yours" if impl else "phase" if phase else FINAL
        self.name = phase or FINAL
        self.facts: dict[str, Any] = {"settings": self.settings}
        self.llm: LLM | None = None
        self.impl = None if impl is None else Path(impl)

    def load(self) -> None:
        self.llm = LLM(self.checkpoint, max_sequences=REQUESTS, progress=self.progress, **self.settings)
        threads = self.llm.options.threads
        self.facts |= {"precision": self.llm.dtype, "device": self.llm.device_name, "threads": threads}
        if self.impl is not None and self.llm.phase is not None:
            self.name = f"a reader's {self.llm.phase}"
            self.facts["files"] = files_in(self.impl, find(self.llm.phase))

    def forget(self) -> None:
        assert self.llm is not None, "loaded first"
        forget_prefixes(self.llm.engine)

    def run(self, asks: Sequence[Ask]) -> Answers:
        assert self.llm is not None, "loaded first"
        engine, limits = self.llm.engine, self.llm.limits
        answers: Answers = [[] for _ in asks]
        for number, ask in enumerate(asks):
            params = SamplingParams(max_tokens=ask.max_tokens, ignore_eos=True, temperature=0)
            engine.submit(Request.create(str(number), ask.prompt, params, limits))
        while engine.has_work:
            for output in engine.step():
                if output.error is not None:
                    raise ContenderFailed(f"request {int(output.request_id) + 1}: {output.error}")
                answers[int(output.request_id)] += output.tokens
        return answers

    def close(self) -> None:
        if self.llm is not None:
            self.llm.close()


class LlamaCppContestant:
    """llama.cpp on a CPU, on the model's own GGUF file, driven like `contenders.llama_cpp`: greedy, in its defaults."""

    name, kind = "llama.cpp", "peer"

    def __init__(self, checkpoint: Checkpoint) -> None:
        if checkpoint.source is None or checkpoint.source.suffix != ".gguf":
            raise ContenderFailed(f"llama.cpp reads a .gguf file, and {checkpoint.name} is none")
        self.file, self.vocab_size = checkpoint.source, checkpoint.config.vocab_size
        self.facts: dict[str, Any] = {}
        self.decoder: Decoder | None = None

    def load(self) -> None:
        self.decoder = Decoder(self.file, REQUESTS, CONTEXT, self.vocab_size)
        self.facts = {
            "settings": {"threads": self.decoder.threads},
            "precision": f"{self.file.name}, keys and values F16",
            "device": "cpu",
        }

    def forget(self) -> None:
        assert self.decoder is not None, "loaded first"
        self.decoder.forget()

    def run(self, asks: Sequence[Ask]) -> Answers:
        assert self.decoder is not None, "loaded first"
        running = {number: Reading(number, list(ask.prompt)) for number, ask in enumerate(asks)}
        answers: Answers = [[] for _ in asks]
        while running:
            for number, token in self.decoder.step(running).items():
                answers[number].append(token)
                running[number].pending = [token]
                if len(answers[number]) == asks[number].max_tokens:
                    self.decoder.forget(number)
                    del running[number]
        return answers

    def close(self) -> None:
        if self.decoder is not None:
            self.decoder.close()
