"""`gradus train-heads`: train heads that draft for a model, from start to finish.

The model writes text and reads it again, and heads learn from its hidden states; the model itself is frozen.
States are computed again in every pass, which is quicker than storing them: 6 GB for 5 million tokens of SmolLM2.
"""

import copy
import gc
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradus.config.options import MOST_DRAFTS
from gradus.errors import ConfigError
from gradus.loading import Checkpoint, Progress, load_model
from gradus.models import Model
from gradus.models.precision import Precision, resolve_device
from gradus.speculative.heads import KINDS, EagleHeads, HeadsShape, MedusaHeads, create_heads
from gradus.speculative.heads_drafter import draft_head
from gradus.speculative.heads_folder import HeadsConfig, fingerprint, write_heads
from gradus.text.llm import LLM
from gradus.training.agreement import Agreement, agreement
from gradus.training.batches import Texts, batches, shuffled
from gradus.training.learning import loss_and_gradient, read
from gradus.training.writing import Conversation, Turns, write

WRITING = 0.4  # fraction of the time
HELD_OUT = 0.02  # fraction of the conversations
WARM_UP = 0.1  # fraction of the steps
BATCH = {"cuda": 8192, "cpu": 2048}  # tokens
SEQUENCES = {"cuda": 512, "cpu": 16}  # written at once
COVERED = 0.97  # fraction of the model's output that the heads' vocabulary covers
STEP = 1024  # the heads' vocabulary is a multiple of this
CLIP = 1.0


@dataclass(frozen=True)
class Recipe:
    """kind: one of KINDS. drafts: the number of tokens to draft. tokens: of answers to train on. minutes: the time
    limit for writing and training; None: no limit. passes: over the text. rate: AdamW's highest learning rate."""

    kind: str = "medusa"
    drafts: int = 4
    tokens: int = 4_000_000
    minutes: float | None = None
    passes: int = 3
    rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"kind must be {' or '.join(KINDS)}, got {self.kind!r}")
        for name, least, most in (("drafts", 1, MOST_DRAFTS), ("tokens", 200, 10**9), ("passes", 1, 1000)):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be between {least} and {most}, got {getattr(self, name)}")
        if self.minutes is not None and self.minutes <= 0:
            raise ConfigError(f"minutes must be more than 0, got {self.minutes:g}")


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of training. size: bytes of the folder's files."""

    config: HeadsConfig
    agreement: Agreement
    size: int

    def summary(self, out: Path) -> str:
        """Describe the result for people, in two lines."""
        found, notes = self.agreement, self.config.trained
        right, stands = (", ".join(f"{100 * share:.0f} %" for share in each) for each in (found.right, found.stands))
        return (
            f"{out} is ready: {notes['kind']} heads for {notes['model']}, {self.size / 1e6:.1f} MB, {notes['steps']} "
            f"steps on {notes['answer_tokens']} tokens\n"
            f"held out, by position: right {right}; right with all before {stands}; {found.tokens_per_step:.2f} tokens "
            "per step if all are verified"
        )


def train_heads(
    checkpoint: Checkpoint, out: Path, recipe: Recipe, *, device: str, dtype: str, progress: Progress
) -> Trained:
    """Write text, train heads on it, and save them. Raises ConfigError, before anything runs, for a folder that is not
    empty, and as `LLM` does."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already: give another folder")
    begin = time.monotonic()
    seconds = math.inf if recipe.minutes is None else 60 * recipe.minutes
    conversations, precision = written(checkpoint, recipe, device, dtype, progress, begin + WRITING * seconds)
    return train_on(
        checkpoint, conversations, out, recipe, precision=precision, device=resolve_device(device), progress=progress,
        until=begin + seconds,
    )  # fmt: skip


def written(
    checkpoint: Checkpoint, recipe: Recipe, device: str, dtype: str, progress: Progress, until: float
) -> tuple[list[Conversation], Precision]:
    """Let the engine that serves the model write text. Returns the conversations, and the engine's precision."""
    kind = resolve_device(device).type
    longest = Turns.of(checkpoint.tokenizer, checkpoint.config.bos_token_id).longest
    context = min(longest, checkpoint.config.context_length)
    llm = LLM(
        checkpoint, device=device, dtype=dtype, max_sequences=SEQUENCES[kind], context_length=context,
        progress=progress,
    )  # fmt: skip
    conversations, precision = write(llm, recipe.tokens, recipe.seed, progress, until), llm.precision
    del llm
    gc.collect()
    if kind == "cuda":
        torch.cuda.empty_cache()
    return conversations, precision


def train_on(
    checkpoint: Checkpoint,
    conversations: Sequence[Conversation],
    out: Path,
    recipe: Recipe,
    *,
    precision: Precision,
    device: torch.device,
    progress: Progress,
    until: float = math.inf,
) -> Trained:
    held = max(1, int(HELD_OUT * len(conversations)))
    if len(conversations) <= held:
        raise ConfigError(f"{len(conversations)} conversations are too few to train on: raise tokens or minutes")
    model = load_model(
        checkpoint, dtype=precision.activations, device=device, linear=precision.linear, progress=progress
    )
    parts = [list(conversations[held:]), [one for one in conversations[:held] if one.greedy] or conversations[:held]]
    size = BATCH[device.type]
    train, test = (batches(part, size, recipe.drafts) for part in parts)
    shape = HeadsShape(
        recipe.kind, recipe.drafts, model.config.hidden_size, model.config.intermediate_size,
        common_words(conversations, model.config.vocab_size),
    )  # fmt: skip
    heads, head = begun(shape, model, train[0], recipe.seed), draft_head(model, shape.vocabulary)
    scale = embedding_scale(model)
    steps = descend(model, heads, head, train, recipe, progress, until, scale)
    if not steps:
        raise ConfigError(f"minutes {recipe.minutes:g} were over before training could begin: raise them")
    heads.layer.fuse.weight[:, shape.hidden_size :] *= scale
    found = agreement(model, heads, head, test, recipe.drafts)
    told = notes(recipe, checkpoint, conversations, steps, found)
    config = HeadsConfig(shape, model.config.family, model.config.vocab_size, fingerprint(model), told)
    return Trained(config, found, write_heads(out, config, heads))


def common_words(conversations: Sequence[Conversation], vocab_size: int) -> int:
    """Choose how many of the first tokens cover the answers, a multiple of STEP; all tokens if that saves little."""
    said = torch.cat([torch.tensor(one.tokens[one.start :]) for one in conversations])
    covered = said.bincount(minlength=vocab_size).cumsum(0) / len(said)
    enough = int((covered < COVERED).sum()) + 1
    count = -(-enough // STEP) * STEP
    return count if count <= 0.75 * vocab_size else vocab_size


@torch.no_grad()
def begun(shape: HeadsShape, model: Model, batch: Sequence[Conversation], seed: int) -> MedusaHeads | EagleHeads:
    """Make heads in float32 that start from the hidden state without any prediction: all logits are 0.

    Starting with a confident repetition of the model's own answer would be worse, because that token is already drawn.
    """
    heads = create_heads(shape, dtype=torch.float32, device=model.device)
    generator, size = torch.Generator().manual_seed(seed), shape.hidden_size
    for name, value in heads.named_parameters():
        fill = torch.ones(value.shape) if name.endswith("norm.weight") else torch.zeros(value.shape)
        if name in ("layer.fuse.weight", "layer.gate_up.weight"):
            fill.normal_(0, 0.02, generator=generator)
        if name == "layer.fuse.weight":
            fill[:, :size] += torch.eye(size)
        value.copy_(fill)
    hidden, _ = read(model, Texts.of(batch[:4], model.device))
    heads.layer.norm.weight.fill_(float(hidden.float().square().mean().sqrt()))
    return heads


def embedding_scale(model: Model) -> float:
    """Compute the factor that scales embeddings to about 1, so that heads learn from them as fast as from hidden
    states.

    At the end it is multiplied into the heads' first matrix.
    """
    sample = torch.arange(0, model.config.vocab_size, max(1, model.config.vocab_size // 4096), device=model.device)
    embedded = model.embed(sample, torch.zeros_like(sample))[:, : model.config.hidden_size]
    return 1 / max(1e-6, float(embedded.float().square().mean().sqrt()))


def descend(
    model: Model,
    heads: MedusaHeads | EagleHeads,
    head: nn.Module,
    train: Sequence[list[Conversation]],
    recipe: Recipe,
    progress: Progress,
    until: float,
    scale: float,
) -> int:
    """Train on all batches, or until the time is up. Returns the number of steps. scale: of embeddings."""
    learner = Learner(heads, model.dtype)
    total, begin = recipe.passes * len(train), time.monotonic()
    progress.begin(f"training {recipe.kind} heads", total)
    step = 0
    for step, batch in enumerate(shuffled(train, recipe.seed, recipe.passes), start=1):
        now = time.monotonic()
        done = 1.0 if now >= until else max((step - 1) / total, (now - begin) / (until - begin))
        if done >= 1:
            step -= 1
            break
        texts = Texts.of(batch, model.device)
        hidden, embedded = read(model, texts)
        features = learner.unrolled(hidden, scale * embedded)
        loss, gradient = loss_and_gradient(features, hidden, texts.counts(recipe.drafts), head)
        features.backward(gradient)
        learner.step(recipe.rate * schedule(done))
        progress.advance(1)
        if step == 1 or step % max(1, total // 10) == 0:
            progress.note(f"step {step} of {total}: loss {loss:.3f}")
    return step


class Learner:
    """AdamW in mixed precision (Micikevicius et al., arXiv 1710.03740): `heads` stay in float32, so that small steps
    count, and a narrower copy multiplies the model's states.

    In float32, products would be most of a step of Qwen2.5-Coder-1.5B's heads. For a model in float16 the copy is in
    bfloat16, because float16 loses small gradients.
    """

    def __init__(self, heads: MedusaHeads | EagleHeads, dtype: torch.dtype) -> None:
        self.dtype = torch.bfloat16 if dtype.itemsize == 2 else torch.float32
        self.copy = copy.deepcopy(heads).to(self.dtype).requires_grad_(True)
        self.kept: list[Tensor] = [*heads.parameters()]
        self.parts: list[Tensor] = [*self.copy.parameters()]
        fused = self.kept[0].is_cuda
        self.optimizer = torch.optim.AdamW(self.kept, betas=(0.9, 0.95), weight_decay=0.01, fused=fused)

    def unrolled(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Call the copy's `DraftHeads.unrolled`."""
        return self.copy.unrolled(hidden.to(self.dtype), embedded.to(self.dtype))

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Take a step, with the gradients that a backward pass has left in the copy."""
        for value, part in zip(self.kept, self.parts, strict=True):
            assert part.grad is not None
            value.grad, part.grad = part.grad.to(value.dtype), None
        nn.utils.clip_grad_norm_(self.kept, CLIP)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        torch._foreach_copy_(self.parts, self.kept)


def schedule(done: float) -> float:
    """The learning rate's factor: up to 1 in the first tenth, then down to 0 along a cosine."""
    if done < WARM_UP:
        return max(done, WARM_UP / 100) / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))


def notes(
    recipe: Recipe, checkpoint: Checkpoint, conversations: Sequence[Conversation], steps: int, found: Agreement
) -> dict[str, Any]:
    """Describe the training for config.json."""
    return {
        "model": checkpoint.name,
        **asdict(recipe),
        "conversations": len(conversations),
        "answer_tokens": sum(len(one.tokens) - one.start for one in conversations),
        "steps": steps,
        "right": [round(each, 4) for each in found.right],
        "stands": [round(each, 4) for each in found.stands],
        "tokens_per_step": round(found.tokens_per_step, 3),
    }
