"""Another engine on the same work: Hugging Face transformers, with the same weights and the same token ids.

`transformers` is `generate`, one request after another with its key-value cache on. `transformers-batch` is its
continuous batching. It is the one place of Gradus that imports transformers, and it never runs a model's own code:
the classes are those that `gradus.models.families.records` names, and the weights are tensors that Gradus has read
itself.
"""

import inspect
import logging
import time
from collections.abc import Sequence
from typing import Any

import torch

from gradus.attention.reference import without_cudnn_attention
from gradus.bench.measure.drive import ContenderFailed, Run, synchronize
from gradus.bench.measure.memory import model_bytes, release
from gradus.bench.workloads import Arrival
from gradus.loading import Checkpoint
from gradus.models import Model, ModelConfig, write_config

RESULT_TIMEOUT = 300.0  # seconds without any result, after which the peer counts as stuck


class Transformers:
    """One request at a time through `generate`, or all through continuous batching. Greedy, no end-of-sequence.

    ours: the same checkpoint as our model, which sets the peer's shape, number type and device.
    """

    def __init__(self, name: str, checkpoint: Checkpoint, ours: Model, batch: int) -> None:
        self.name, self.checkpoint, self.ours, self.batch = name, checkpoint, ours, batch
        self.needed_bytes = model_bytes(ours)  # its own copy of the weights
        self.about = ""
        self.model: Any = None

    def build(self) -> None:
        try:
            import transformers
        except ImportError as error:
            raise ContenderFailed("transformers is not installed") from error
        transformers.logging.set_verbosity_error()
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
        # A CPU's bfloat16 weights with float32 activations are ours alone: the peer gets the activations' type.
        self.model = build_model(self.checkpoint, self.ours.config, self.ours.dtype, self.ours.device)

    def run(self, arrivals: Sequence[Arrival], *, watch_memory: bool = False) -> Run:
        device = self.ours.device
        before = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
        synchronize(device)
        with without_cudnn_attention():  # as for us
            run = self._batched(arrivals) if self.name == "transformers-batch" else self._one_by_one(arrivals)
        if device.type == "cuda":
            run.peak_bytes = self.needed_bytes + torch.cuda.max_memory_allocated(device) - before
        run.check()
        return run

    def close(self) -> None:
        self.model = None
        release(self.ours.device)

    def _one_by_one(self, arrivals: Sequence[Arrival]) -> Run:
        from transformers import GenerationConfig

        times: list[list[float]] = [[] for _ in arrivals]
        start = time.perf_counter()
        for index in sorted(range(len(arrivals)), key=lambda index: arrivals[index].at):
            arrival = arrivals[index]
            time.sleep(max(0.0, arrival.at - (time.perf_counter() - start)))
            config = GenerationConfig(
                max_new_tokens=arrival.max_tokens,
                min_new_tokens=arrival.max_tokens,
                do_sample=False,
                use_cache=True,
                pad_token_id=0,
            )
            prompt = torch.tensor([arrival.prompt], device=self.ours.device)
            self.model.generate(
                prompt, attention_mask=torch.ones_like(prompt), generation_config=config,
                streamer=_TokenClock(start, times[index]),
            )  # fmt: skip
        return Run(arrivals, times)

    def _batched(self, arrivals: Sequence[Arrival]) -> Run:
        """Hand requests to its thread as they arrive; every token carries that thread's time stamp."""
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        config = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        room = sum(len(arrival.prompt) + arrival.max_tokens for arrival in arrivals)
        batching = ContinuousBatchingConfig(max_requests_per_batch=self.batch, **_pool(room, self.batch))
        manager = self.model.init_continuous_batching(generation_config=config, continuous_batching_config=batching)
        getattr(manager, "warmup", lambda: None)()  # captures CUDA graphs, in the releases that do
        manager.start()
        try:
            start = time.perf_counter()
            names = []
            for index, arrival in enumerate(arrivals):
                time.sleep(max(0.0, arrival.at - (time.perf_counter() - start)))
                names.append(
                    manager.add_request(
                        list(arrival.prompt), str(index), max_new_tokens=arrival.max_tokens, record_timestamps=True
                    )
                )
            results = self._collect(manager, len(arrivals))
        finally:
            manager.stop(block=True)
            getattr(manager, "destroy", lambda: None)()
        return Run(arrivals, [[stamp - start for stamp in results[name].timestamps] for name in names])

    @staticmethod
    def _collect(manager: Any, count: int) -> dict[str, Any]:
        results: dict[str, Any] = {}
        last = time.monotonic()
        while len(results) < count:
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                if result.error:
                    raise ContenderFailed(str(result.error))
                results[result.request_id] = result
                last = time.monotonic()
            elif not manager.is_running() or time.monotonic() - last > RESULT_TIMEOUT:
                raise ContenderFailed("continuous batching stopped before every request was done")
        return results


def _pool(tokens: int, batch: int) -> dict[str, Any]:
    """A fixed page pool for all sequences at once, so that it does not depend on the memory that happens to be free."""
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    page = 256
    size = "page_size" if "page_size" in inspect.signature(ContinuousBatchingConfig).parameters else "block_size"
    return {size: page, "num_blocks": -(-tokens // page) + 2 * batch, "max_batch_tokens": 2048}


class _TokenClock:
    """A streamer for `generate`: receives the prompt first, then every token as soon as the host has it."""

    def __init__(self, start: float, times: list[float]) -> None:
        self.start, self.times, self.prompt_seen = start, times, False

    def put(self, value: torch.Tensor) -> None:
        if self.prompt_seen:
            self.times.append(time.perf_counter() - self.start)
        self.prompt_seen = True

    def end(self) -> None:
        pass


# -- the same model there ----------------------------------------------------------------------------------------------


def build_model(checkpoint: Checkpoint, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Any:
    """The transformers model of the same shape, with the checkpoint's weights if it has any, else noise."""
    import transformers

    raw = write_config(config)
    make_model = getattr(transformers, raw["architectures"][0])
    described = make_model.config_class(**raw, attn_implementation="sdpa")
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = make_model(described).eval()
    finally:
        torch.set_default_dtype(previous)
    if checkpoint.tensors is not None:
        _fill(model, checkpoint)
    return model.requires_grad_(False)


def _fill(model: Any, checkpoint: Checkpoint) -> None:
    """Copy the checkpoint's tensors, whose names are Hugging Face's. Raises ContenderFailed if one has no place."""
    assert checkpoint.tensors is not None
    own = dict(model.named_parameters())
    own |= {name.removeprefix("transformer."): value for name, value in own.items()}
    for name in checkpoint.tensors.names():
        if name not in own and name != "lm_head.weight":  # tied: the embedding, once more
            raise ContenderFailed(f"tensor {name!r} has no place in the transformers model")
        if name in own:
            with torch.no_grad():
                own[name].copy_(checkpoint.tensors.read(name))
