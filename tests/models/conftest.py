"""What the model tests share: naive attention, checkpoints in memory, and the transformers model as the reference."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from gradus.models import Model, ModelConfig, create_model, load_weights, read_config

torch.set_num_threads(1)


@dataclass
class NaiveAttention:
    """One sequence, everything kept, every score computed and then masked: slow, and easy to see right."""

    config: ModelConfig
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        config, source = self.config, self.config.kv_source(layer)
        if k is not None and v is not None:
            if layer in self.keys:
                k, v = torch.cat((self.keys[layer], k)), torch.cat((self.values[layer], v))
            self.keys[layer], self.values[layer] = k, v
        k, v = self.keys[source], self.values[source]
        group = config.num_heads // config.layer(layer).num_kv_heads
        visible = self.visible(q.shape[0], k.shape[0], config.windows[layer])
        out = []
        for head in range(config.num_heads):
            scores = q[:, head] @ k[:, head // group].T * config.attention_scale
            if config.attention_softcap is not None:
                scores = config.attention_softcap * torch.tanh(scores / config.attention_softcap)
            scores = torch.where(visible, scores, torch.tensor(-1e30)).float()
            if sinks is not None:  # one more column, whose weight goes nowhere
                scores = torch.cat((scores, sinks[head].expand(len(scores), 1)), dim=1)
            weights = scores.softmax(-1)[:, : len(k)].to(v.dtype)
            out.append(weights @ v[:, head // group])
        return torch.stack(out, dim=1)

    @staticmethod
    def visible(queries: int, keys: int, window: int | None) -> Tensor:
        distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)[None, :]
        return (distance >= 0) & (distance < (window or keys))


@dataclass
class InMemory:
    """A TensorSource over a dictionary."""

    tensors: dict[str, Tensor]
    reads: list[str] = field(default_factory=list)

    def names(self) -> Iterable[str]:
        return self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def read(self, name: str) -> Tensor:
        self.reads.append(name)
        return self.tensors[name]

    def where(self, name: str) -> str:
        return "model.safetensors"


def run(model: Model, tokens: list[int]) -> Tensor:
    """[V] logits of every position, the whole sequence in one step."""
    ids = torch.tensor(tokens)
    with torch.inference_mode():
        return model.logits(model(ids, torch.arange(len(tokens)), NaiveAttention(model.config)))


def loaded(config: ModelConfig, tensors: dict[str, Tensor]) -> Model:
    model = create_model(config)
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))  # whatever loading forgets shows up in the logits
    load_weights(model, InMemory(tensors))
    return model


@dataclass
class Reference:
    """A random transformers model, its checkpoint, and its logits on one random sequence of 40 tokens."""

    raw: dict
    config: ModelConfig
    tensors: dict[str, Tensor]
    tokens: list[int]
    logits: Tensor

    def error(self, model: Model) -> float:
        """Largest difference of any logit."""
        return (run(model, self.tokens) - self.logits).abs().max().item()


def reference(kind: str, *, softcap: float | None = None, **settings: object) -> Reference:
    """`kind` is transformers' class prefix. softcap: passed at the call, as transformers' Gemma 3 forgets it."""
    import transformers
    from transformers.core_model_loading import revert_weight_conversion

    torch.manual_seed(hash_of(settings))
    hf_config = getattr(transformers, f"{kind}Config")(
        **settings, attn_implementation="eager", experts_implementation="eager"
    )
    class_name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind.removesuffix('Text')}ForCausalLM"
    model = getattr(transformers, class_name)(hf_config).eval()
    for name, weight in model.named_parameters():
        around_one = name.endswith(("weight", "scale")) and kind != "Gemma3Text"
        centre = 1.0 if weight.ndim == 1 and around_one else 0.0
        torch.nn.init.normal_(weight, centre, 0.2 if weight.ndim == 1 else 0.1)  # norms and biases count as well
    for name, number in model.named_buffers():  # weights that are no parameters for transformers
        if name.endswith(("layer_scalar", "e_score_correction_bias")):
            torch.nn.init.normal_(number, float(name.endswith("layer_scalar")), 0.2)
    tokens = torch.randint(0, hf_config.vocab_size, (40,)).tolist()
    # transformers skips rows of Gemma 4's sharing layers unless it is to return all, and fails without layers' inputs
    extra: dict[str, object] = {"output_hidden_states": True} | ({} if softcap is None else {"softcap": softcap})
    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), **extra).logits[0]
    raw = hf_config.to_dict()
    stored = revert_weight_conversion(model, model.state_dict())  # the names and cuts of files, not of memory
    tensors = {name: value.detach().clone() for name, value in stored.items()}
    return Reference(raw, read_config(raw), tensors, tokens, logits)


def hash_of(settings: dict) -> int:
    """The same seed for the same settings, in every process."""
    return sum(repr(sorted(settings.items(), key=lambda item: item[0])).encode())


@pytest.fixture
def tiny_tokens() -> list[int]:
    return torch.randint(0, 256, (40,), generator=torch.Generator().manual_seed(1)).tolist()
