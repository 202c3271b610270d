"""Replays the model's pass over short prompts from CUDA graphs.

The host takes some ten milliseconds to launch a model's few hundred kernels. A long prompt takes the GPU longer than
that, a short one a tenth of it, so its first token waits for the host. Unlike steps of decodes, these steps differ in
their launches. So only the model's pass, which is nearly all of the step, is captured, by its number of rows. Before
each replay, `GraphPagedAttention` fills in each row's slot, where its keys and values go, and how attention is split.

Rows are padded to the next captured size. A size is worth a graph as long as the GPU needs no more time for it than the
host needs to launch it. Beyond that size, padding would cost time, and a graph would save none.
"""

import time
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from gradus.attention.backend import AttentionBackend
from gradus.attention.batch import Batch
from gradus.attention.graph_paged import MOST_PADDED, GraphPagedAttention
from gradus.execution.gpu.capturing import Captured, Recorder, replay_ms, ways
from gradus.execution.gpu.warm_up import crowds, padding_batch
from gradus.kernels.core.overlap import early_launches
from gradus.models import Model
from gradus.models.config import ModelConfig, active_parameters

SIZES = (
    16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, MOST_PADDED,
)  # fmt: skip
MOST_FLOP = 8e12  # of a pass: a GPU of 800 TFLOP/s computes for ten milliseconds, as long as the host launches
LONGER = 1.25  # times the host's launch time: a GPU that is still busy by then is the slower side
LOOKS = 3  # measurements before that is believed: one hiccup would cost all larger sizes their graphs


def prompt_sizes(config: ModelConfig, budget: int | None) -> Sequence[int]:
    """List the sizes that steps of up to `budget` rows can be padded to and that a GPU may finish before its host."""
    most = len(SIZES) if budget is None else 1 + bisect_left(SIZES, budget)
    flop = 2 * active_parameters(config)  # per row
    return [size for size in SIZES[:most] if size * flop <= MOST_FLOP]


class PromptGraphs:
    """Takes the model's place for rows that its attention is prepared for, and replays a graph where one fits.

    model: the kernels' view of it. recorder: records the decode steps' graphs too, which never run at the same time.
    longest: positions of a sequence. budget: most rows of a step with prompts.
    """

    def __init__(
        self, model: Model, attention: GraphPagedAttention, recorder: Recorder, *, longest: int, budget: int | None
    ) -> None:
        self.model, self.attention, self.recorder, self.longest = model, attention, recorder, longest
        self.sizes = prompt_sizes(model.config, budget)
        self.captured: dict[int, Captured[Tensor]] = {}
        self.inputs = torch.zeros(2, MOST_PADDED, dtype=torch.int64, device=model.device)  # token ids, positions

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor:
        """Run the model. token_ids, positions: int64 [N].

        Returns hidden states, [N or more, D], which the next replay overwrites.
        """
        size = self.attention.padded
        if not size:
            return self.model(token_ids, positions, attention)
        self._fill_in(token_ids, positions)
        return self.captured[size].replay()

    def _fill_in(self, token_ids: Tensor, positions: Tensor) -> None:
        """Copy the inputs. Rows of padding keep their old contents: only where they are stored matters."""
        self.inputs[0, : len(token_ids)] = token_ids
        self.inputs[1, : len(positions)] = positions

    # -- once, at the start --------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def rehearse(self, crowd: int) -> None:
        """Go through every launch that `capture` will record, and those that prepare steps of up to `crowd` spans."""
        for size in self.sizes:
            self._set_up(size)
            for early in ways(size, self.model.device):
                self._run(size, early, full=False)
        for spans in crowds(crowd):
            if spans <= max(self.sizes, default=0):
                self.attention.prepare(self._batch([1] * spans))
        self.attention.sizes = ()

    @torch.inference_mode()
    def capture(self) -> None:
        """Record a pass of every size worth a graph, largest first: the smaller ones then fit into its memory.

        Nothing else may run on the GPU meanwhile.
        """
        with self.recorder.counting():
            launching = self._launching()
            for size in reversed(launching):
                self._set_up(size)
                captured = self.recorder.fastest(size, partial(self._run, size))
                (replaying,) = self.recorder.agree([replay_ms(captured.graph)])
                if replaying <= launching[size]:
                    self.captured[size] = captured
        self.attention.sizes = sorted(self.captured)

    def _launching(self) -> dict[int, float]:
        """Measure the host's launch time of each size, in milliseconds, stopping where the GPU is the slower side."""
        found = {}
        for size in self.sizes:
            self._set_up(size)
            self._run(size, early=False, full=False)  # loads the kernels
            looks = (self.recorder.agree(self._launch_ms(size)) for _ in range(LOOKS))
            launched = next((launched for launched, done in looks if done <= LONGER * launched), None)
            if launched is None:
                break
            found[size] = launched
        return found

    def _set_up(self, size: int) -> None:
        """Prepare a step of `size` rows: sequences as long as they may be, all in padding's slot."""
        self.attention.sizes = (size,)
        whole, rest = divmod(size, self.longest)
        batch = self._batch([self.longest] * whole + [rest] * (rest > 0))
        self.attention.prepare(batch)
        self._fill_in(batch.token_ids, batch.positions)

    def _batch(self, counts: list[int]) -> Batch:
        return padding_batch(counts, self.attention.padding, self.model.device)

    def _run(self, size: int, early: bool, full: bool) -> Tensor:
        token_ids, positions = self.inputs[:, :size]
        with early_launches(early):
            return self.model(token_ids, positions, self.attention)

    def _launch_ms(self, size: int) -> tuple[float, float]:
        """Measure the milliseconds until the host has launched the pass, and until the GPU has run it."""
        torch.cuda.synchronize(self.model.device)
        start = time.perf_counter()
        self._run(size, early=False, full=False)
        launched = time.perf_counter()
        torch.cuda.synchronize(self.model.device)
        return 1e3 * (launched - start), 1e3 * (time.perf_counter() - start)
