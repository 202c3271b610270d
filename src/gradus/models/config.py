"""What a model is, in numbers: read from a checkpoint's config.json, checked once, and trusted from then on.

Everything downstream (the models, the KV cache, the memory plan, the roofline) reads a `ModelConfig` and never the
file. So this is where a damaged or unsupported configuration stops, with one line that names the key. Torch-free.
"""

from dataclasses import dataclass
from typing import Any, Literal

from gradus.errors import ConfigError

Family = Literal["gpt2", "llama", "qwen2", "qwen3", "gemma3"]


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation (Chen et al. 2023): every position counts as position / factor."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's scaling: slow rotations are divided by `factor`, fast ones kept, those between are blended.

    A rotation is slow when its wavelength exceeds original_context / low_frequency_factor tokens, and fast when it is
    below original_context / high_frequency_factor.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding (Su et al. 2021): theta is the base of its geometric series of wavelengths."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | None = None


@dataclass(frozen=True)
class ModelConfig:
    """One architecture's hyperparameters. Lengths and windows are in tokens.

    Raises ConfigError when the numbers contradict each other.
    """

    family: Family  # Mistral and SmolLM2 are of the family "llama"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int  # grouped-query attention: num_heads // num_kv_heads query heads share one key and value head
    head_dim: int  # not always hidden_size // num_heads
    context_length: int
    norm_eps: float
    activation: str  # a key of layers.ACTIVATIONS
    tie_embeddings: bool  # the output head is the input embedding's matrix
    attention_bias: bool  # of queries, keys and values
    attention_output_bias: bool
    mlp_bias: bool
    rope: Rope | None  # None: learned positions (GPT-2)
    local_rope: Rope | None  # of the layers with a window, where they have their own (Gemma 3)
    windows: tuple[int | None, ...]  # one per layer: a query sees itself and window - 1 tokens before it; None: all
    attention_scale: float  # scores are q·k times this
    attention_softcap: float | None  # scores become softcap * tanh(score / softcap)
    final_softcap: float | None  # the same for the logits
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"model configuration: {self.num_heads} attention heads cannot share {self.num_kv_heads} "
                "key-value heads evenly (num_attention_heads must be a multiple of num_key_value_heads)"
            )
        if self.rope is not None and self.head_dim % 2:
            raise ConfigError(f"model configuration: head_dim must be even for rotary positions, got {self.head_dim}")
        if len(self.windows) != self.num_layers:
            raise ConfigError(
                f"model configuration: {len(self.windows)} layer types are given for {self.num_layers} layers"
            )
        specials = [("eos_token_id", token) for token in self.eos_token_ids]
        specials += [] if self.bos_token_id is None else [("bos_token_id", self.bos_token_id)]
        for name, token in specials:
            if not 0 <= token < self.vocab_size:
                raise ConfigError(
                    f"model configuration: {name} {token} is not in the vocabulary of {self.vocab_size} tokens"
                )

    @classmethod
    def from_hf(cls, raw: dict[str, Any]) -> "ModelConfig":
        """Read a Hugging Face config.json, in the spelling of transformers 4 or 5.

        Absent keys take the value that transformers gives them. Code that a configuration points to (`auto_map`) is
        never looked at. Raises ConfigError naming the key, what it must be, and what was found.
        """
        from gradus.models.hf_config import read_config

        return read_config(raw)


def parameter_count(config: ModelConfig) -> int:
    """Distinct weights of the model (a tied head counts once): bytes of weights = this times bytes a weight."""
    hidden, heads_width = config.hidden_size, config.num_heads * config.head_dim
    qkv_width = heads_width + 2 * config.num_kv_heads * config.head_dim
    attention = hidden * qkv_width + heads_width * hidden
    attention += qkv_width * config.attention_bias + hidden * config.attention_output_bias

    gated = config.family != "gpt2"
    up_width = config.intermediate_size * (2 if gated else 1)
    mlp = hidden * up_width + config.intermediate_size * hidden
    mlp += (up_width + hidden) * config.mlp_bias

    norm = hidden * (2 if config.family == "gpt2" else 1)  # LayerNorm has a bias, RMSNorm has not
    norms = norm * (4 if config.family == "gemma3" else 2)
    if config.family in ("qwen3", "gemma3"):
        norms += 2 * config.head_dim  # of queries and keys

    embeddings = config.vocab_size * hidden * (1 if config.tie_embeddings else 2)
    if config.rope is None:
        embeddings += config.context_length * hidden
    return embeddings + config.num_layers * (attention + mlp + norms) + norm


def kv_bytes_per_token(config: ModelConfig, bytes_per_value: int = 2, bytes_per_scale: int = 0) -> int:
    """Bytes that one more token adds to the KV cache: a key and a value in every layer.

    bytes_per_scale: what each head's key, and its value, has beside its numbers.
    A layer with a window stops growing once the window is full; this counts it as if it had none (the upper bound).
    """
    return 2 * config.num_layers * config.num_kv_heads * (config.head_dim * bytes_per_value + bytes_per_scale)
