"""A model in numbers: read from a checkpoint's config.json, checked once, and trusted from then on.

Everything downstream (the models, the KV cache, the memory plan, the roofline, the kernels) takes its sizes from a
`ModelConfig` and never from the file, and asks it what a layer consists of, never which family it belongs to. Numbers
that contradict each other stop here; `families/hf/` stops a damaged file, with one line that names the key.
Torch-free.
"""

from dataclasses import dataclass, replace
from functools import cached_property
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
class Yarn:
    """YaRN (Peng et al. 2023): slow rotations are divided by `factor`, fast ones kept, and those between blended.

    A rotation of `fast` turns or more within original_context is fast, and one of `slow` turns or fewer is slow. whole:
    the bounds between them are rounded to whole pairs. amplitude: multiplies cosines and sines, and so sharpens scores.
    """

    factor: float
    original_context: int
    fast: float = 32.0
    slow: float = 1.0
    whole: bool = True
    amplitude: float = 1.0


@dataclass(frozen=True)
class LongRope:
    """LongRoPE (Ding et al. 2024): every pair's wavelength has a factor of its own, found by search.

    long: one factor per pair, for a model whose context_length exceeds original_context; short: for all others.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int
    amplitude: float = 1.0


Scaling = LinearScaling | Llama3Scaling | Yarn | LongRope


@dataclass(frozen=True)
class QueryGrowth:
    """Queries grow with their position p, by 1 + beta * log(1 + p // original_context) (Llama 4, Ministral 3)."""

    beta: float
    original_context: int


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding (Su et al. 2021): theta is the base of its geometric series of wavelengths.

    turned: values of each head that turn, an even number; None: all. proportional: the wavelengths are the shortest of
    the whole head's series (Gemma 4), not a series of their own (Phi). growth: of queries, after they are turned.
    """

    theta: float
    scaling: Scaling | None = None
    turned: int | None = None
    proportional: bool = False
    growth: QueryGrowth | None = None


@dataclass(frozen=True)
class Experts:
    """A layer's experts: MLPs, a few of them chosen by a router for each token (Shazeer et al. 2017).

    count: how many there are. chosen: how many a token takes. width: features of one.
    sigmoid: each expert's score is the sigmoid of its logit (DeepSeek V3), not a softmax over all. normalized: the
    scores of the chosen are divided by their sum. scale: multiplies the weights that result.
    biased: the router's product and the experts' have biases. corrected: a bias per expert is added to its score for
    the choice alone. groups, chosen_groups: experts are chosen from the best groups; a group's score is the sum of its
    two best experts' (DeepSeek V3). scaled: the weight of each expert has a factor of its own (Gemma 4).
    first, held: the experts that a part of a model has, `held` of them from `first` on; 0: all (`ModelConfig.shard`).
    """

    count: int
    chosen: int
    width: int
    sigmoid: bool = False
    normalized: bool = True
    scale: float = 1.0
    biased: bool = False
    corrected: bool = False
    groups: int = 1
    chosen_groups: int = 1
    scaled: bool = False
    first: int = 0
    held: int = 0

    @property
    def own(self) -> range:
        """The experts that this model, or this part of one, has."""
        return range(self.first, self.first + (self.held or self.count))

    def __post_init__(self) -> None:
        if not 1 <= self.chosen <= self.count:
            raise ConfigError(f"model configuration: {self.chosen} of {self.count} experts cannot be chosen")
        if self.count % self.groups or not 1 <= self.chosen_groups <= self.groups:
            raise ConfigError(
                f"model configuration: {self.count} experts cannot be chosen from {self.chosen_groups} of "
                f"{self.groups} equal groups"
            )
        if self.chosen > self.chosen_groups * (self.count // self.groups):
            raise ConfigError(
                f"model configuration: {self.chosen_groups} groups of {self.count // self.groups} experts have no "
                f"{self.chosen} to choose"
            )


CLAMPED = "clamped_silu"  # gpt-oss's gate: `layers.Clamped`
CLAMP, STEEPNESS = 7.0, 1.702  # its numbers


class LayerSizes(NamedTuple):
    """The sizes of one layer, where layers differ."""

    num_kv_heads: int
    head_dim: int
    intermediate_size: int


@dataclass(frozen=True)
class ModelConfig:
    """One model's hyperparameters. Lengths and windows are in tokens.

    num_kv_heads, head_dim and intermediate_size are those of every layer unless `sizes` lists them by layer; `layer(i)`
    is the configuration that layer i is built from. intermediate_size counts the features of a layer's dense MLP: next
    to experts that is the one that all tokens share, and 0 where a layer has experts alone.

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
    activation: str  # a key of layers.ACTIVATIONS, or CLAMPED
    tie_embeddings: bool  # the output head is the input embedding's matrix
    attention_bias: bool  # of queries, keys and values
    attention_output_bias: bool
    mlp_bias: bool
    ropes: tuple[Rope | None, ...]  # one per layer; None: the layer's queries and keys do not turn
    windows: tuple[int | None, ...]  # one per layer: a query sees itself and window - 1 tokens before it; None: all
    attention_scale: float  # scores are q·k times this
    attention_softcap: float | None  # scores become softcap * tanh(score / softcap)
    final_softcap: float | None  # the same for the logits
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    learned_positions: bool = False  # a table of positions is added to the embedding (GPT-2)
    gated: bool = True  # the MLP's first product makes a gate as well, which decides how much of each feature passes
    norm_bias: bool = False  # LayerNorm has a bias, RMSNorm has none
    pre_norms: bool = True  # the inputs of attention and the MLP are normalized
    post_norms: bool = False  # their outputs are normalized before they are added
    qk_norm: bool = False  # every query and key head is normalized before it is rotated
    qk_norm_across_heads: bool = False  # all of a token's query heads have one norm, all its key heads another (OLMo)
    value_norm: bool = False  # every value head is normalized, without weights
    embedding_scale: float = 1.0  # embeddings are multiplied by this
    residual_scale: float = 1.0  # outputs of attention and the MLP are multiplied by this before they are added
    logit_scale: float = 1.0  # logits are multiplied by this
    layer_scales: bool = False  # each layer's result is multiplied by a number of its own, a weight
    sizes: tuple[LayerSizes, ...] = ()  # one per layer, where they differ
    keys_as_values: tuple[bool, ...] = ()  # one per layer: its values are its keys, before norm and rotation
    kv_sources: tuple[int, ...] = ()  # one per layer: the layer whose keys and values it attends to, or itself
    per_layer_width: int = 0  # values of each token's embedding in every layer (Gemma 4 E2B and E4B); 0: none
    experts: tuple[Experts | None, ...] = ()  # one per layer; None: a layer without; (): no layer has any
    experts_apart: bool = False  # experts and dense MLP have norms of their own, before and behind (Gemma 4)
    shared_gate: bool = False  # the dense MLP next to experts is multiplied by a gate of the token (Qwen2-MoE)
    attention_sinks: bool = False  # each query head has one more logit in its softmax, without a value

    def __post_init__(self) -> None:
        for layer in (LayerSizes(self.num_kv_heads, self.head_dim, self.intermediate_size), *self.sizes):
            if self.num_heads % layer.num_kv_heads:
                raise ConfigError(
                    f"model configuration: {self.num_heads} attention heads cannot share {layer.num_kv_heads} "
                    "key-value heads evenly (num_attention_heads must be a multiple of num_key_value_heads)"
                )
            if layer.head_dim % 2 and not self.learned_positions:
                raise ConfigError(
                    f"model configuration: head_dim must be even for rotary positions, got {layer.head_dim}"
                )
        for what, each in [("layer types", self.windows), ("rotary embeddings", self.ropes), ("sizes", self.sizes),
                           ("key-value sources", self.kv_sources), ("experts", self.experts)]:  # fmt: skip
            if len(each) != self.num_layers and (each or what in ("layer types", "rotary embeddings")):
                raise ConfigError(f"model configuration: {len(each)} {what} are given for {self.num_layers} layers")
        if self.residual_scale != 1 and (self.per_layer_width or self.layer_scales or not self.pre_norms):
            raise ConfigError("model configuration: a residual multiplier needs normalized inputs of all products")
        if self.attention_sinks and self.attention_softcap is not None:
            raise ConfigError("model configuration: attention has either sinks or a soft cap of its scores")
        specials = [("eos_token_id", token) for token in self.eos_token_ids]
        specials += [] if self.bos_token_id is None else [("bos_token_id", self.bos_token_id)]
        for name, token in specials:
            if not 0 <= token < self.vocab_size:
                raise ConfigError(
                    f"model configuration: {name} {token} is not in the vocabulary of {self.vocab_size} tokens"
                )

    def layer(self, index: int) -> "ModelConfig":
        """The configuration with the sizes of one layer."""
        return self._by_layer[index] if self.sizes else self

    @cached_property
    def _by_layer(self) -> tuple["ModelConfig", ...]:
        return tuple(replace(self, sizes=(), **sizes._asdict()) for sizes in self.sizes)

    def stage(self, layers: range) -> "ModelConfig":
        """The configuration of some layers alone, whose keys and values must be their own.

        Raises ValueError if one of them attends to the keys and values of a layer outside.
        """
        sources = tuple(self.kv_source(layer) - layers.start for layer in layers) if self.kv_sources else ()
        if any(not 0 <= source < len(layers) for source in sources):
            raise ValueError("a layer attends to the keys and values of one in another stage")
        if self.per_layer_width and len(layers) < self.num_layers:
            raise ValueError("layers have embeddings of their own, which do not pass from stage to stage")
        by_layer = {name: getattr(self, name)[layers.start : layers.stop] for name in _BY_LAYER}
        return replace(self, num_layers=len(layers), kv_sources=sources, **by_layer)

    def experts_at(self, layer: int) -> Experts | None:
        return self.experts[layer] if self.experts else None

    def kv_source(self, layer: int) -> int:
        """The layer whose keys and values a layer attends to: mostly itself."""
        return self.kv_sources[layer] if self.kv_sources else layer

    def stores_kv(self, layer: int) -> bool:
        """Whether a layer has keys and values of its own."""
        return self.kv_source(layer) == layer

    def has_values_from_keys(self, layer: int) -> bool:
        return bool(self.keys_as_values) and self.keys_as_values[layer]

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
    def input_width(self) -> int:
        """Values of a row that `Model.embed` makes: the stream, and behind it the inputs of every layer."""
        return self.hidden_size + self.num_layers * self.per_layer_width

    @property
    def stream_eps(self) -> float:
        """The eps of norms that read the residual stream, which is kept divided by residual_scale.

        x + r f(norm(x)) is r (x/r + f(norm(x))), and a norm sees the stream's scale in its eps alone: so dividing the
        embedding by r, and eps by r², does what multiplying every output by r would (Granite).
        """
        return self.norm_eps / self.residual_scale**2

    def qkv_parts(self, layer: int) -> tuple[int, ...]:
        """The parts of a layer's first product's result: queries alone where another layer has the keys and values."""
        widths = self.layer(layer).qkv_widths
        return widths if self.stores_kv(layer) else widths[:1]

    @property
    def up_widths(self) -> tuple[int, ...]:
        """The parts of the MLP's first product's result: gate and features, or features alone."""
        return (self.intermediate_size,) * (2 if self.gated else 1)

    def shard(self, rank: int, count: int) -> "Shard":
        """The part of `rank` among `count` devices that share every matrix (tensor parallelism, Shoeybi et al. 2019).

        Products that read the residual stream are cut by rows (whole heads; features of the MLP), products that write
        to it by columns, so each rank's output is a summand. Ranks that outnumber the key-value heads share them.
        Experts stay whole, and each rank has some of them; all ranks have the router.
        Raises ValueError when heads, features or experts do not divide evenly.
        """
        heads = _part("num_attention_heads", self.num_heads, rank, count)
        features = _part("intermediate_size", self.intermediate_size, rank, count)
        kv_heads = _kv_part(self.num_kv_heads, rank, count)
        rows = -(-self.vocab_size // count)
        config = replace(
            self,
            num_heads=len(heads),
            num_kv_heads=len(kv_heads),
            intermediate_size=len(features),
            sizes=tuple(self._slice_sizes(sizes, rank, count) for sizes in self.sizes),
            experts=tuple(None if each is None else _held(each, rank, count) for each in self.experts),
            vocab_size=rows,
            bos_token_id=None,
            eos_token_ids=(),  # these ids count all rows, and a slice has only some
        )
        return Shard(config, heads, kv_heads, features, range(rank * rows, (rank + 1) * rows), rank, count)

    @staticmethod
    def _slice_sizes(sizes: LayerSizes, rank: int, count: int) -> LayerSizes:
        kv_heads = _kv_part(sizes.num_kv_heads, rank, count)
        features = _part("intermediate_size", sizes.intermediate_size, rank, count)
        return LayerSizes(len(kv_heads), sizes.head_dim, len(features))


_BY_LAYER = ("ropes", "windows", "sizes", "keys_as_values", "experts")


class Shard(NamedTuple):
    """One rank's part of a model: its sizes, and the place of each in the whole.

    config: the sizes; hidden_size is not divided. kv_heads, features: of a layer without `sizes` of its own. tokens:
    its rows of the embedding and the head, those from the whole vocab_size on being padding. rank, ranks: this
    part's number, and how many there are, by which a layer of other sizes is cut: `config.layer(i).shard(rank, ranks)`.
    """

    config: ModelConfig
    heads: range
    kv_heads: range
    features: range
    tokens: range
    rank: int
    ranks: int


def _held(experts: Experts, rank: int, count: int) -> Experts:
    own = _part("experts", experts.count, rank, count)
    return replace(experts, first=own.start, held=len(own))


def _kv_part(heads: int, rank: int, count: int) -> range:
    if heads < count and count % heads == 0:
        first = rank * heads // count
        return range(first, first + 1)
    return _part("num_key_value_heads", heads, rank, count)


def _part(name: str, size: int, rank: int, count: int) -> range:
    if not 0 <= rank < count:
        raise ValueError(f"rank must be between 0 and {count - 1}, got {rank}")
    if size % count:
        raise ValueError(f"{name} {size} cannot be divided among {count} devices: it must be a multiple of {count}")
    return range(rank * size // count, (rank + 1) * size // count)


def layer_matrix_parameters(config: ModelConfig, layer: int) -> int:
    """Weights in one layer's matrices, those of all its experts included. Biases and norms are not."""
    experts = config.experts_at(layer)
    others = 0 if experts is None else expert_parameters(config, experts) * (experts.count - experts.chosen)
    return layer_active_parameters(config, layer) + others


def layer_active_parameters(config: ModelConfig, layer: int) -> int:
    """Weights of one layer's matrices that each row is multiplied by: of its experts, those chosen for a token."""
    sizes, hidden, experts = config.layer(layer), config.hidden_size, config.experts_at(layer)
    attention = hidden * sum(config.qkv_parts(layer)) + sizes.q_width * hidden
    embedded = 2 * hidden * config.per_layer_width
    dense = hidden * (sum(sizes.up_widths) + sizes.intermediate_size)
    chosen = 0
    if experts is not None:
        router = hidden * (experts.count + config.shared_gate)
        chosen = router + experts.chosen * expert_parameters(config, experts)
    return attention + dense + embedded + chosen


def expert_parameters(config: ModelConfig, experts: Experts) -> int:
    """Weights in the matrices of one expert."""
    return (3 if config.gated else 2) * config.hidden_size * experts.width


def distinct_experts(experts: Experts, rows: int) -> float:
    """Expected number of experts that at least one of `rows` tokens takes, each as likely as any other."""
    return experts.count * (1 - (1 - experts.chosen / experts.count) ** rows)


def matrix_parameters(config: ModelConfig) -> int:
    """Weights in the matrices of all layers."""
    return sum(layer_matrix_parameters(config, layer) for layer in range(config.num_layers))


def active_parameters(config: ModelConfig) -> int:
    """Weights of all layers' matrices that each row is multiplied by."""
    return sum(layer_active_parameters(config, layer) for layer in range(config.num_layers))


def even_position(config: ModelConfig) -> float:
    """The position at which a token is multiplied with as many keys and values as matrix weights.

    Layers with a window attend to no more, however far on; a model of such layers alone counts them as if they did.
    """
    widths = [config.layer(layer).q_width for layer in range(config.num_layers)]
    whole = [width for width, window in zip(widths, config.windows, strict=True) if window is None]
    return active_parameters(config) / (2 * sum(whole or widths))


def parameter_count(config: ModelConfig) -> int:
    """Weights of the model (a tied head counts once; keys that are values, which are stored twice, count twice)."""
    hidden, norm = config.hidden_size, config.hidden_size * (2 if config.norm_bias else 1)
    embeddings = config.vocab_size * hidden * (1 if config.tie_embeddings else 2)
    if config.learned_positions:
        embeddings += config.context_length * hidden
    if width := config.per_layer_width:
        embeddings += config.num_layers * width * (config.vocab_size + hidden) + width
    vectors = sum(_vector_parameters(config, layer, norm) for layer in range(config.num_layers))
    return embeddings + matrix_parameters(config) + vectors + norm


def parameters_per_token(config: ModelConfig) -> int:
    """Weights of the model without the experts that a token does not take.

    Most makers call these active. Some leave out the embedding, and some the head as well.
    """
    return parameter_count(config) - matrix_parameters(config) + active_parameters(config)


def _vector_parameters(config: ModelConfig, layer: int, norm: int) -> int:
    """Biases and norms of one layer."""
    sizes, hidden, own = config.layer(layer), config.hidden_size, config.stores_kv(layer)
    biases = sum(config.qkv_parts(layer)) * config.attention_bias + hidden * config.attention_output_bias
    biases += (sum(sizes.up_widths) + hidden) * config.mlp_bias
    norms = norm * 2 * (config.pre_norms + config.post_norms) + norm * (config.per_layer_width > 0)
    if config.qk_norm_across_heads:
        norms += sizes.q_width + sizes.kv_width * own
    elif config.qk_norm:
        norms += sizes.head_dim * (1 + own)
    sinks = sizes.num_heads * config.attention_sinks
    return biases + norms + sinks + config.layer_scales + _expert_vectors(config, layer)


def _expert_vectors(config: ModelConfig, layer: int) -> int:
    """Biases, norms and factors of one layer's experts and router."""
    experts, hidden = config.experts_at(layer), config.hidden_size
    if experts is None:
        return 0
    biases = experts.count * (1 + hidden + experts.width * (2 if config.gated else 1)) * experts.biased
    return biases + experts.count * (experts.corrected + experts.scaled) + 4 * hidden * config.experts_apart


def kv_bytes_per_token(config: ModelConfig, bytes_per_value: int = 2, bytes_per_scale: int = 0) -> int:
    """Bytes that one more token adds to the KV cache: a key and a value in every layer that has its own.

    bytes_per_scale: what each head's key, and its value, stores in addition to its numbers.
    A layer with a window stops growing once the window is full; this counts it as if it had none (the upper bound).
    """
    own = [config.layer(layer) for layer in range(config.num_layers) if config.stores_kv(layer)]
    return sum(2 * each.num_kv_heads * (each.head_dim * bytes_per_value + bytes_per_scale) for each in own)
