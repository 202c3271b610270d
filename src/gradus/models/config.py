"""A model in numbers: read from a checkpoint's config.json, checked once, and trusted from then on.

Everything downstream (the models, the KV cache, the memory plan, the roofline, the kernels) takes its sizes from a
`ModelConfig` and never from the file, and asks it what a layer consists of, never which family it belongs to. Numbers
that contradict each other stop here; `families/hf_config.py` stops a damaged file, with one line that names the key.
Torch-free.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from gradus.errors import ConfigError


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation (Chen et al. 2023): every position counts as position / factor."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's scaling: divide slow rotations by `factor`, keep fast ones, and blend the rest.

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
    """One model's hyperparameters. Lengths and windows are in tokens.

    Raises ConfigError when the numbers contradict each other.
    """

    family: str  # a key of families.FAMILIES; Mistral and SmolLM2 belong to "llama"
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
    local_rope: Rope | None  # for the layers with a window, where they have their own (Gemma 3)
    windows: tuple[int | None, ...]  # one per layer: a query sees itself and window - 1 tokens before it; None: all
    attention_scale: float  # scores are q·k times this
    attention_softcap: float | None  # scores become softcap * tanh(score / softcap)
    final_softcap: float | None  # the same for the logits
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    gated: bool = True  # the MLP's first product makes a gate as well, which decides how much of each feature passes
    norm_bias: bool = False  # LayerNorm has a bias, RMSNorm has none
    qk_norm: bool = False  # every query and key head is normalized before it is rotated
    post_norms: bool = False  # the outputs of attention and the MLP are normalized too

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

    @property
    def q_width(self) -> int:
        """Values of a token's query heads, which is also the width of attention's result."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Values of a token's key heads, and as many of its value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_widths(self) -> tuple[int, int, int]:
        """The parts of the first product's result: queries, keys, values."""
        return self.q_width, self.kv_width, self.kv_width

    @property
    def up_widths(self) -> tuple[int, ...]:
        """The parts of the MLP's first product's result: gate and features, or features alone."""
        return (self.intermediate_size,) * (2 if self.gated else 1)

    def shard(self, rank: int, count: int) -> "Shard":
        """The part of `rank` among `count` devices that share every matrix (tensor parallelism, Shoeybi et al. 2019).

        Products that read the residual stream are cut by rows (whole heads; features of the MLP), products that write
        to it by columns, so each rank's output is a summand. Ranks that outnumber the key-value heads share them.
        Raises ValueError when heads or features do not divide evenly.
        """
        heads = _part("num_attention_heads", self.num_heads, rank, count)
        features = _part("intermediate_size", self.intermediate_size, rank, count)
        if self.num_kv_heads < count and count % self.num_kv_heads == 0:
            first = rank * self.num_kv_heads // count
            kv_heads = range(first, first + 1)
        else:
            kv_heads = _part("num_key_value_heads", self.num_kv_heads, rank, count)
        rows = -(-self.vocab_size // count)
        config = replace(
            self,
            num_heads=len(heads),
            num_kv_heads=len(kv_heads),
            intermediate_size=len(features),
            vocab_size=rows,
            bos_token_id=None,
            eos_token_ids=(),  # these ids count all rows, and a slice has only some
        )
        return Shard(config, heads, kv_heads, features, range(rank * rows, (rank + 1) * rows))


class Shard(NamedTuple):
    """One rank's part of a model: its sizes, and the place of each in the whole.

    config: the sizes; hidden_size is not divided. tokens: its rows of the embedding and the head, those from the whole
    vocab_size on being padding.
    """

    config: ModelConfig
    heads: range
    kv_heads: range
    features: range
    tokens: range


def _part(name: str, size: int, rank: int, count: int) -> range:
    if not 0 <= rank < count:
        raise ValueError(f"rank must be between 0 and {count - 1}, got {rank}")
    if size % count:
        raise ValueError(f"{name} {size} cannot be divided among {count} devices: it must be a multiple of {count}")
    return range(rank * size // count, (rank + 1) * size // count)


def layer_matrix_parameters(config: ModelConfig) -> int:
    """Weights in one layer's matrices: each is multiplied once for every row. Biases and norms are not included."""
    attention = config.hidden_size * sum(config.qkv_widths) + config.q_width * config.hidden_size
    return attention + config.hidden_size * (sum(config.up_widths) + config.intermediate_size)


def even_position(config: ModelConfig) -> float:
    """The position at which a token is multiplied with as many keys and values as matrix weights.

    Layers with a window attend to no more, however far on; a model of such layers alone counts them as if they did.
    """
    layers = sum(window is None for window in config.windows) or config.num_layers
    return config.num_layers * layer_matrix_parameters(config) / (2 * config.q_width * layers)


def parameter_count(config: ModelConfig) -> int:
    """Distinct weights of the model (a tied head counts once): times bytes per weight, the bytes of its weights."""
    hidden = config.hidden_size
    biases = sum(config.qkv_widths) * config.attention_bias + hidden * config.attention_output_bias
    biases += (sum(config.up_widths) + hidden) * config.mlp_bias

    norm = hidden * (2 if config.norm_bias else 1)
    norms = norm * (4 if config.post_norms else 2)
    norms += 2 * config.head_dim * config.qk_norm

    embeddings = config.vocab_size * hidden * (1 if config.tie_embeddings else 2)
    if config.rope is None:
        embeddings += config.context_length * hidden
    return embeddings + config.num_layers * (layer_matrix_parameters(config) + biases + norms) + norm


def kv_bytes_per_token(config: ModelConfig, bytes_per_value: int = 2, bytes_per_scale: int = 0) -> int:
    """Bytes that one more token adds to the KV cache: a key and a value in every layer.

    bytes_per_scale: what each head's key, and its value, stores in addition to its numbers.
    A layer with a window stops growing once the window is full; this counts it as if it had none (the upper bound).
    """
    return 2 * config.num_layers * config.num_kv_heads * (config.head_dim * bytes_per_value + bytes_per_scale)
