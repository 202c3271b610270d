"""Loading in a server: a model's files are opened once, whichever side asks first, and closed afterwards."""

import pytest

from gradus.config.options import SERVED_SLOWDOWN, SERVED_STEP_TARGETS
from gradus.engine.request import ModelLimits
from gradus.engine.structured import Structured
from gradus.loading import Tokenizer
from gradus.server.config import ServerConfig
from gradus.server.engine import loading
from gradus.structured import Grammars, begin_index, grammars_of
from gradus.structured.vocabulary import PADDING, Vocabulary
from tests.server.conftest import eventually

CONFIG = ServerConfig(model="random:tiny-llama", phase="p01", device="cpu")


@pytest.fixture
def opened(monkeypatch):
    """The tokenizers that were made, in their order."""
    made, make = [], Tokenizer.of_bytes
    monkeypatch.setattr(Tokenizer, "of_bytes", lambda: made.append(make()) or made[-1])
    return made


@pytest.mark.parametrize(
    ("settings", "target"),
    [
        ({}, SERVED_STEP_TARGETS["cpu"]),
        ({"step_target": 0.3}, 0.3),
        ({"step_target": 0}, 0),
        ({"switch_off": ["chunked"]}, None),
        ({"phase": "p06"}, None),
    ],
)
def test_a_server_on_a_cpu_limits_the_steps_that_its_clients_share(settings, target):
    assert loading.keywords(ServerConfig(**{"device": "cpu", **settings}))["step_target"] == target


@pytest.mark.parametrize(
    ("settings", "promises"),
    [
        ({}, (SERVED_STEP_TARGETS["cuda"], SERVED_SLOWDOWN)),
        ({"slowdown": 1.2}, (SERVED_STEP_TARGETS["cuda"], 1.2)),
        ({"step_target": 0.05}, (0.05, SERVED_SLOWDOWN)),
        ({"step_target": 0}, (0, None)),
        ({"switch_off": ["chunked"]}, (None, None)),
        ({"phase": "p06"}, (None, None)),
    ],
)
def test_a_server_on_a_gpu_limits_what_a_long_prompt_costs_the_others(settings, promises):
    assert tuple(loading.promises(ServerConfig(**settings), "cuda").values()) == promises
    assert loading.promises(ServerConfig(**settings), "cpu")["slowdown"] == settings.get("slowdown")


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


FINAL = ServerConfig(model="random:tiny-llama", device="cpu", dtype="float32")


@pytest.mark.parametrize(("width", "times"), [(256, 1), (256 + PADDING, 1), (300 + PADDING, 2)])
def test_a_front_end_builds_its_index_once_before_it_knows_the_models_width(monkeypatch, width, times):
    """Later, every stream would wait for it. Only a model with much padding needs another."""
    built, of = [], Vocabulary.of
    monkeypatch.setattr(Vocabulary, "of", lambda *given: built.append(of(*given)) or built[-1])
    tokenizer = loading.open_tokenizer(FINAL)
    begin_index(tokenizer)  # as EngineClient does
    eventually(lambda: len(built) == 1)
    grammars = grammars_of(tokenizer, ModelLimits(width, 64, (0,)))
    assert grammars.vocabulary().vocab_size == width and len(built) == times
    matcher = grammars.matcher(Structured(regex="ab"))
    assert matcher.accept(list(b"ab")) and matcher.accepting


def test_an_engine_builds_its_index_while_it_reads_the_weights(monkeypatch):
    from gradus.text import llm

    order, warm, assemble = [], Grammars.warm, llm.assemble
    monkeypatch.setattr(Grammars, "warm", lambda grammars: (order.append(grammars), warm(grammars)))
    monkeypatch.setattr(llm, "assemble", lambda *given: (order.append("weights"), assemble(*given))[1])
    core, _ = loading.load_engine(FINAL)
    assert order == [core.compiler, "weights"]
