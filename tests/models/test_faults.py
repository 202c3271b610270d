"""Every fault of a config.json at once, and the keys of a model type that is not supported."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.models.families.checkpoints import CHECKPOINTS, loadable
from gradus.models.families.faults import read_through
from gradus.models.families.records import FAMILIES, read_config
from gradus.models.families.unsupported import UNSUPPORTED, why
from tests.models.test_config import ALL, JUNK, LLAMA, damaged, paths

TYPES = {kind for family in FAMILIES.values() for kind in family.types}


def faults(raw: object) -> list[str]:
    config, found = read_through(raw)
    assert config is None and found
    return found


@pytest.mark.parametrize("raw", ALL, ids=lambda raw: raw["model_type"])
def test_a_file_without_faults_is_read_as_ever(raw: dict[str, Any]) -> None:
    assert read_through(raw) == (read_config(raw), [])


def test_each_fault_is_named_not_only_the_first() -> None:
    raw = LLAMA | {"vocab_size": "320", "hidden_act": "relu", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    del raw["intermediate_size"]
    keys = sorted(line.split(" ")[0] for line in faults(raw))
    assert keys == ["hidden_act", "intermediate_size", "rope_scaling.rope_type", "vocab_size"]


def test_faults_of_a_nested_part_have_its_path() -> None:
    raw = {
        "model_type": "mistral3",
        "text_config": LLAMA | {"model_type": "mistral", "head_dim": 0, "vocab_size": None},
    }
    assert sorted(line.split(" ")[0] for line in faults(raw)) == ["text_config.head_dim", "text_config.vocab_size"]


def test_what_an_unsupported_type_has_is_named_by_its_keys() -> None:
    text = {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "num_experts": 256, "q_lora_rank": None}
    found = faults({"model_type": "qwen3_5_moe", "text_config": text, "is_encoder_decoder": False})
    assert found == [
        "model_type 'qwen3_5_moe' is not supported: layers with a state are not computed; "
        "Qwen3-30B-A3B (qwen3_moe) is the nearest that loads",
        "text_config.layer_types: 3 of 4 layers do not attend: layers with a state are not computed",
    ]


def test_a_value_that_stands_in_for_the_files_is_never_at_fault() -> None:
    found = faults({"model_type": "llama"})
    assert found and all("is missing" in line for line in found)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), raw=st.sampled_from(ALL))
def test_anything_ends_in_a_configuration_or_in_lines(data: st.DataObject, raw: dict[str, Any]) -> None:
    for _ in range(2):
        raw = damaged(raw, data.draw(st.sampled_from(paths(raw))), data.draw(JUNK))
    config, found = read_through(raw)
    assert (config is None) is bool(found)
    assert all(line and "\n" not in line for line in found)


# ---- The tables ------------------------------------------------------------------------------------------------------


def test_every_type_that_is_read_is_listed() -> None:
    assert set(CHECKPOINTS) == TYPES
    names = [name for named in CHECKPOINTS.values() for name in named]
    assert len(names) == len(set(names))
    assert [family.name for family in loadable()] == list(FAMILIES)


def test_the_nearest_that_loads_does_load() -> None:
    for kind, (_, nearest) in UNSUPPORTED.items():
        assert kind not in TYPES
        assert nearest.checkpoint in CHECKPOINTS[nearest.model_type], kind


@pytest.mark.parametrize(
    "name", ["qwen3_5_moe", "qwen35moe", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"]
)
def test_one_type_has_many_spellings(name: str) -> None:
    assert why(name, TYPES) == why("qwen3_5_moe", TYPES) and "state" in why(name, TYPES)
