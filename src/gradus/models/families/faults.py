"""Every fault of a config.json, where reading it to load the model ends at the first.

A key at fault gets a value that is accepted, and reading goes on. Of a model type that is not supported, no reader
exists: then the keys are named that say what is not computed. Torch-free.
"""

from collections.abc import Iterator
from typing import Any

from gradus.errors import ConfigError
from gradus.models.config import ModelConfig
from gradus.models.families.hf.fields import KeyFault, shown
from gradus.models.families.records import read_config
from gradus.models.families.unsupported import ENCODERS, LATENTS, STATES

MOST_FAULTS = 50  # more say nothing new of one file
ATTENTION = ("attention", "full_attention", "sliding_attention")

_COUNTED = {  # keys that are above 0 in models with the trait
    **dict.fromkeys(("ssm_state_size", "mamba_d_state", "conv_L_cache", "linear_num_value_heads"), STATES),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), LATENTS),
}
_SWITCHES = {"is_encoder_decoder": ENCODERS}


def read_through(raw: object) -> tuple[ModelConfig | None, list[str]]:
    """Read a config.json to its end. Returns the configuration, None if there are faults, and a line for each."""
    faults: dict[str, str] = {}
    for _ in range(MOST_FAULTS):
        try:
            config = read_config(raw)
        except KeyFault as fault:
            if fault.path in faults:  # no value of this key alone mends the file
                break
            faults[fault.path] = _line(fault)
            raw = _mended(raw, fault.path.split("."), fault.instead)
        except ConfigError as error:
            if not faults:  # otherwise it may be about a value that replaced the file's
                faults[""] = _line(error)
            break
        else:
            return (None if faults else config), list(faults.values())
    return None, [*faults.values(), *traits(raw)]


def traits(raw: object, path: str = "") -> Iterator[str]:
    """The keys that say what is not computed here, whatever the model type."""
    if not isinstance(raw, dict):
        return
    for key, value in raw.items():
        if key in _COUNTED and isinstance(value, int) and value > 0:
            yield f"{path}{key} is {shown(value)}: {_COUNTED[key]}"
        elif key in _SWITCHES and value is True:
            yield f"{path}{key} is set: {_SWITCHES[key]}"
        elif key in ("layer_types", "layers_block_type") and isinstance(value, list):
            others = [kind for kind in value if kind not in ATTENTION]
            if others:
                yield f"{path}{key}: {len(others)} of {len(value)} layers do not attend: {STATES}"
        elif key == "text_config":
            yield from traits(value, "text_config.")


def _line(error: ConfigError) -> str:
    return str(error).removeprefix("model configuration: ")


def _mended(raw: Any, path: list[str], instead: Any) -> Any:
    """The file with one key's value replaced; None removes the key."""
    first, *rest = path
    inside = raw.get(first) if isinstance(raw, dict) else None
    others = {key: value for key, value in raw.items() if key != first} if isinstance(raw, dict) else {}
    if rest:
        return others | {first: _mended(inside, rest, instead)}
    return others if instead is None else others | {first: instead}
