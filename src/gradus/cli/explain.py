"""`gradus serve --explain MODEL`: what a model needs and reaches on a card, and the command that serves it."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradus.bench.contenders.workbench import streamed_bytes
from gradus.bench.measure.fingerprint import machine_of, rates
from gradus.bench.predict.roofline import Machine, Widths, streamed_parameters
from gradus.bench.sizing.cards import CARDS, Card, card, card_of
from gradus.bench.sizing.estimate import PROMPTS, USERS, Estimate, Objective, Use
from gradus.bench.sizing.pace import ON_CPU, ON_GPU, Speed
from gradus.bench.sizing.records import Measured, measured
from gradus.cache.capacity import sessions_in_words
from gradus.config.options import EngineConfig
from gradus.device.capability import assuming, capability
from gradus.errors import ConfigError
from gradus.execution.memory.device_memory import DeviceMemory, readable
from gradus.execution.memory.plan import MemoryPlan, kv_bytes
from gradus.loading import Checkpoint, open_checkpoint
from gradus.models.create import create_model
from gradus.models.precision import Precision, resolve_device
from gradus.server.config import ServerConfig
from gradus.server.engine.loading import Prepared, plan_of, prepared

SCHEMES = ("fp8", "int8", "int4")
TWICE = ("fp8", "int8")  # as many products per second, by the data sheets


@dataclass(frozen=True, slots=True)
class Place:
    """A device to plan for. card: the one that is meant; None for a device here that is in no table."""

    name: str
    device: torch.device
    memory: DeviceMemory
    card: Card | None = None

    def machine(self, precision: Precision) -> Machine:
        if self.card is not None:
            return self.card.machine
        return machine_of(rates(self.device, quick=True), precision.activations, precision.weights)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A model on a device. fits: False if its weights leave no room; then `plan` alone is of use."""

    settings: ServerConfig
    place: Place
    checkpoint: Checkpoint
    precision: Precision
    ranks: int
    plan: MemoryPlan
    estimate: Estimate

    @property
    def fits(self) -> bool:
        return self.plan.fits and self.plan.context_length > 1


def explain(settings: ServerConfig, name: str | None, objective: str | None, use: str | None) -> Explanation:
    """Plan and estimate. name: a card's; None: the device here. Raises ConfigError for a model that does not fit."""
    if settings.phase is not None:
        raise ConfigError("--explain estimates the final engine: leave --phase out")
    if (settings.keywords()["pipeline_parallel"] or 1) > 1:
        raise ConfigError("--explain estimates one stage, and tensor_parallel: leave --pipeline-parallel out")
    Objective.of(objective or "tpot:1")  # before anything is opened
    asked = Use() if use is None else Use.of(use)
    place = _place(settings, name)
    checkpoint = open_checkpoint(settings.model)
    found = _explained(settings, place, checkpoint, asked)
    if not found.fits:
        raise ConfigError(_refusal(found, asked))
    return found


def _place(settings: ServerConfig, name: str | None) -> Place:
    if name is not None:
        meant = card(name)
        return Place(meant.title, torch.device("cuda"), DeviceMemory(meant.free, meant.memory), meant)
    device = resolve_device(settings.device)
    if device.type != "cuda":
        return Place("the CPU here", device, DeviceMemory.of(device))
    title = torch.cuda.get_device_name(device)
    return Place(title, device, DeviceMemory.of(device), card_of(title))


def _explained(settings: ServerConfig, place: Place, checkpoint: Checkpoint, use: Use) -> Explanation:
    with assuming(None if place.card is None else place.card.assumed):
        ready = prepared(settings, checkpoint, place.device)
        plan = plan_of(ready, None, place.device, place.memory)
        speed = _speed(ready, place)
    assert isinstance(ready.options, EngineConfig)
    estimate = Estimate(speed, plan, use)
    return Explanation(settings, place, checkpoint, ready.precision, ready.options.ranks, plan, estimate)


def _speed(ready: Prepared, place: Place) -> Speed:
    """Weigh the model as it is stored in memory, on torch's "meta" device."""
    config, precision = ready.config, ready.precision
    model = create_model(config, dtype=precision.activations, device="meta", linear=precision.linear)
    assert isinstance(ready.options, EngineConfig)
    value, scale = kv_bytes(ready.options, precision.activations.itemsize)
    scaled = value + scale / max(1, config.head_dim)
    widths = Widths(streamed_bytes(model) / streamed_parameters(config), scaled)
    on_gpu = place.device.type == "cuda"
    twice = on_gpu and precision.scheme in TWICE and (precision.scheme == "int8" or _multiplies_fp8(place))
    pace = ON_GPU if on_gpu else ON_CPU
    quantized = precision.scheme is not None
    return Speed(config, widths, place.machine(precision), pace, 2.0 if twice else 1.0, quantized, ready.options.ranks)


def _multiplies_fp8(place: Place) -> bool:
    return capability(place.device).multiplies_fp8


# -- what does not fit -------------------------------------------------------------------------------------------------


def _refusal(found: Explanation, use: Use) -> str:
    """Say what does not fit, and what would: fewer bits, a larger card, or more ranks."""
    plan, settings = found.plan, found.settings
    ways = [*_smaller(found, use), *_larger(found, use)]
    advice = f"; what fits: {', or '.join(ways)}" if ways else "; no card in the table holds it: use --tensor-parallel"
    return (
        f"{settings.model} does not fit on {found.place.name}: weights take {readable(plan.weight_bytes)} of "
        f"{readable(plan.usable_bytes)} usable, and steps and cache the rest{advice}"
    )


def _smaller(found: Explanation, use: Use) -> Iterable[str]:
    if found.settings.quantize is not None or found.checkpoint.quantized is not None:
        return
    for scheme in SCHEMES:
        fewer = _tried(replace(found.settings, quantize=scheme), found.place, found.checkpoint, use)
        if fewer is not None and fewer.fits:
            yield f"--quantize {scheme} ({readable(fewer.plan.weight_bytes)}, context {fewer.plan.context_length})"


def _larger(found: Explanation, use: Use) -> Iterable[str]:
    have = found.place.memory.total or found.place.memory.free
    for other in sorted(CARDS.values(), key=lambda each: each.memory):
        if other.memory > have:
            place = Place(other.title, torch.device("cuda"), DeviceMemory(other.free, other.memory), other)
            fitting = _tried(found.settings, place, found.checkpoint, use)
            if fitting is not None and fitting.fits:
                yield f"--card {other.name}"
                return


def _tried(settings: ServerConfig, place: Place, checkpoint: Checkpoint, use: Use) -> Explanation | None:
    try:
        return _explained(settings, place, checkpoint, use)
    except ConfigError:
        return None


# -- for people and for programs ---------------------------------------------------------------------------------------


def runs_of(found: Explanation) -> list[Measured]:
    """The repository's measurements of this shape, in as many bits, on this card."""
    scheme = found.precision.scheme or ""
    name = found.place.card.name if found.place.card else "cpu" if found.place.device.type == "cpu" else ""
    shape = found.estimate.speed.config
    return [one for one in measured() if (one.hardware, one.scheme) == (name, scheme) and alike(one.config, shape)]


def alike(one: Any, other: Any) -> bool:
    """Whether two models have the same sizes, whatever their names and contexts."""
    names = ("num_layers", "hidden_size", "vocab_size", "windows", "experts")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def as_dict(found: Explanation, objective: Objective | None) -> dict[str, Any]:
    """Return everything for --json, times in seconds."""
    estimate, plan = found.estimate, found.plan
    made: dict[str, Any] = {
        "model": found.checkpoint.name,
        "device": found.place.name,
        "weights": found.precision.title,
        "ranks": found.ranks,
        "weight_bytes": plan.weight_bytes,
        "cache_bytes": plan.cache_bytes,
        "cache_bytes_per_token": plan.cache_bytes_per_token,
        "context_length": plan.context_length,
        "max_sequences": plan.max_sequences,
        "notes": plan.notes,
        "sessions": {str(length): count for length, count in plan.sequences_by_length.items()},
        "request": {"prompt": estimate.use.prompt, "answer": estimate.use.answer},
        "users": [_users(estimate, users) for users in USERS if users <= estimate.most_users],
        "prompt_seconds": {
            str(tokens): estimate.prompt_seconds(tokens) for tokens in PROMPTS if tokens < plan.context_length
        },
        "measured": [
            {"run": one.label, "tok_s": one.rate, "formula_tok_s": one.formula, "source": one.source}
            for one in runs_of(found)
        ],
        "command": command(found, objective),
    }
    if objective is not None:
        made["objective"] = {"ttft": objective.ttft, "tpot": objective.tpot}
        made["users_in_time"] = estimate.users_in_time(objective)
    return made


def _users(estimate: Estimate, users: int) -> dict[str, Any]:
    return {
        "users": users,
        "tok_s": estimate.rate(users),
        "tpot": estimate.token_seconds(users),
        "ttft": estimate.first_seconds(users),
    }


def render(made: Mapping[str, Any], plan: MemoryPlan) -> str:
    """Render `as_dict` for people: one fact per line, the command last."""
    use = made["request"]
    lines = [
        ("model", f"{made['model']}, {made['weights']}" + (f", {made['ranks']} ranks" if made["ranks"] > 1 else "")),
        ("device", f"{made['device']}, {readable(plan.usable_bytes)} usable" + _each(made)),
        ("weights", readable(made["weight_bytes"]) + _each(made)),
        ("cache", f"{readable(made['cache_bytes'])}, {readable(made['cache_bytes_per_token'])} per token"),
        ("context", f"{made['context_length']:,} tokens"),
        ("holds at once", sessions_in_words(plan.sequences_by_length, plan.max_sequences)),
        *(("note", note) for note in made["notes"]),
        *((f"prompt of {int(tokens):,}", _ms(seconds)) for tokens, seconds in made["prompt_seconds"].items()),
        *(
            (
                f"{row['users']} user{'s' if row['users'] > 1 else ''}",
                f"{row['tok_s']:,.0f} tok/s in all, {_ms(row['tpot'])} per token, {_ms(row['ttft'])} to the first",
            )
            for row in made["users"]
        ),
        ("", f"(each sends {use['prompt']:,} tokens for {use['answer']:,}, again and again; formula, not measured)"),
        *(
            (
                "measured",
                f"{one['run']}: {one['tok_s']:,.0f} tok/s, formula {one['formula_tok_s']:,.0f} ({_ratio(one)})",
            )
            for one in made["measured"]
        ),
    ]
    if "users_in_time" in made:
        lines.append(("in time", f"{made['users_in_time']} users at a time: {_objective(made['objective'])}"))
    return "\n".join(f"{name:<20}{value}" for name, value in [*lines, ("command", made["command"])])


def _each(made: Mapping[str, Any]) -> str:
    return " on each" if made["ranks"] > 1 else ""


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _ratio(one: Mapping[str, Any]) -> str:
    return f"{one['formula_tok_s'] / one['tok_s']:.2f}×"


def _objective(wanted: Mapping[str, float | None]) -> str:
    names = {"ttft": "to the first token", "tpot": "per token"}
    return ", ".join(f"at most {_ms(value)} {names[name]}" for name, value in wanted.items() if value is not None)


def command(found: Explanation, objective: Objective | None) -> str:
    """Write the command that serves this: what was asked for, and as many sequences as are in time."""
    settings, default = found.settings, ServerConfig()
    words = ["gradus", "serve", "--model", settings.model]
    for name, value in vars(settings).items():
        if name == "model" or value == getattr(default, name):
            continue
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        else:
            words += [word for each in (value if isinstance(value, tuple) else (value,)) for word in (flag, str(each))]
    if objective is not None and settings.keywords()["max_sequences"] is None:
        users = found.estimate.users_in_time(objective)
        words += ["--max-sequences", str(users)] if 0 < users < found.plan.max_sequences else []
    return shlex.join(words)
