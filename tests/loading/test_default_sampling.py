"""The sampling that a model's files recommend: which source is used, and what becomes of bad values."""

import gguf
import pytest

from gradus.engine.request import SamplingParams
from gradus.errors import CheckpointError
from gradus.loading import CATALOGUE, open_checkpoint
from gradus.loading.default_sampling import IN_GGUF, LLAMA_CPP, NAMES, Recommended, in_words, of_gguf
from gradus.loading.fetch.catalogue import Entry, License, Piece
from tests.loading.builders import write_folder, write_gguf, write_json

FILE = "generation_config.json"
QWEN = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
STORED = {"general.sampling.temp": 0.699999988, "general.sampling.top_k": 20, "general.sampling.penalty_repeat": 1.0}


def test_a_folder_s_generation_config_is_read(tmp_path):
    folder = write_folder(tmp_path / "tiny")
    assert open_checkpoint(str(folder)).default_sampling.values == {}
    others = {"do_sample": True, "max_length": 2048, "eos_token_id": 2, "min_p": None}
    write_json(folder / FILE, QWEN | others)
    found = open_checkpoint(str(folder)).default_sampling
    assert found.values == QWEN and found.source == FILE


def test_a_value_that_no_request_could_have_is_left_out(tmp_path, caplog):
    folder = write_folder(tmp_path / "tiny")
    write_json(folder / FILE, {"temperature": 0.6, "top_p": 1.5, "top_k": "many"})
    assert open_checkpoint(str(folder)).default_sampling.values == {"temperature": 0.6}
    assert f"{FILE}: top_p must be a number between 0 and 1, got 1.5; the value is not used" in caplog.text
    assert of_gguf(tmp_path / "m.gguf", {"general.sampling.temp": [1]}) == LLAMA_CPP
    assert "m.gguf: temperature must be" in caplog.text


def test_each_source_precedes_the_next_and_is_used_whole(tmp_path):
    card = Recommended({"temperature": 0.2}, "a card")
    file = write_gguf(tmp_path / "m.gguf")
    assert open_checkpoint(str(file)).default_sampling == LLAMA_CPP
    assert of_gguf(file, {}, card) == card
    found = of_gguf(file, STORED, card)
    assert found.values == {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.0}  # as it was before float32
    assert found.source == "the .gguf file's metadata"
    write_json(tmp_path / FILE, {"temperature": 0.6, "eos_token_id": 2})
    assert of_gguf(file, STORED, card) == Recommended({"temperature": 0.6}, FILE)
    write_json(tmp_path / FILE, {"eos_token_id": 2})
    assert of_gguf(file, STORED, card) == found, "a file that recommends nothing is no source"


def test_a_copy_of_the_catalogue_s_file_has_the_catalogue_s_sampling(tmp_path, monkeypatch):
    file = write_gguf(tmp_path / "m.gguf")
    terms, card = License("none", ""), Recommended({"temperature": 0.3}, "a card")
    piece = Piece("p", "1", "m", file.stat().st_size, "", 0)
    monkeypatch.setitem(CATALOGUE, "toy", Entry("toy", "", terms, "m.gguf", "", (piece,), sampling=card))
    assert open_checkpoint(str(file)).default_sampling == card
    other = file.rename(tmp_path / "other.gguf")
    assert open_checkpoint(str(other)).default_sampling == LLAMA_CPP


def test_a_damaged_file_next_to_the_weights_is_named(tmp_path):
    file = write_gguf(tmp_path / "m.gguf")
    (tmp_path / FILE).write_text("{")
    with pytest.raises(CheckpointError, match=FILE):
        open_checkpoint(str(file))


def test_the_keys_are_those_of_llama_cpp():
    known = {key for name, key in vars(gguf.Keys.General).items() if name.startswith("SAMPLING_")}
    assert set(IN_GGUF.values()) <= known and set(IN_GGUF) == set(NAMES)


def test_every_model_of_the_catalogue_has_sampling_of_a_stated_source():
    for entry in CATALOGUE.values():
        assert entry.sampling.values and entry.sampling.source, entry.name
        assert set(entry.sampling.values) <= set(NAMES)
        SamplingParams(**entry.sampling.values)
    assert set(LLAMA_CPP.values) <= set(NAMES) and SamplingParams(**LLAMA_CPP.values)


def test_values_are_listed_by_source():
    sources = {"temperature": "--temperature", "top_p": "a card", "top_k": "a card"}
    assert in_words({"temperature": 0.2, "top_p": 0.95, "top_k": 40}, sources) == (
        "temperature 0.2 (--temperature); top_p 0.95, top_k 40 (a card)"
    )
