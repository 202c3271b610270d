"""Loading in a server: a model's files are opened once, whichever side asks first, and closed afterwards."""

import pytest

from gradus.loading import Tokenizer
from gradus.server.config import ServerConfig
from gradus.server.engine import loading

CONFIG = ServerConfig(model="random:tiny-llama", phase="p01", device="cpu")


@pytest.fixture
def opened(monkeypatch):
    """The tokenizers that were made, in their order."""
    made, make = [], Tokenizer.of_bytes
    monkeypatch.setattr(Tokenizer, "of_bytes", lambda: made.append(make()) or made[-1])
    return made


def test_both_sides_of_a_server_open_the_tokenizer_once(opened):
    tokenizer = loading.open_tokenizer(CONFIG)
    core, info = loading.load_engine(CONFIG)
    assert opened == [tokenizer]
    assert info.model == CONFIG.model and not core.has_work
    assert not loading._opened


def test_an_engine_loads_where_the_tokenizer_was_opened_elsewhere(opened):
    _, info = loading.load_engine(CONFIG)
    assert info.model == CONFIG.model and len(opened) == 1


def test_a_second_server_looks_at_the_files_again(opened):
    for _ in range(2):
        loading.open_tokenizer(CONFIG)
        loading.load_engine(CONFIG)
    assert len(opened) == 2
