"""A front end opens the tokenizer of any kind of model without torch, and gets the one that the engine has."""

import json
import subprocess
import sys

import pytest

from gradus.errors import CheckpointError, ConfigError
from gradus.loading import open_checkpoint, open_tokenizer
from tests.loading.builders import write_folder, write_gguf
from tests.loading.test_llama2c import content

TEXT = "the thing and the nest, é"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    llama2c = folder / "toy.llama2c"
    llama2c.write_bytes(content())
    return {
        "a folder": write_folder(folder / "hf"),
        "GGUF": write_gguf(folder / "toy.gguf"),
        "llama2.c": llama2c,
        "random": "random:tiny-llama",
    }


def test_tokenizers_are_the_checkpoints_own_and_need_no_torch(models):
    code = (
        "import json, sys\n"
        "from gradus.loading import open_tokenizer\n"
        f"found = [open_tokenizer(name).encode({TEXT!r}) for name in sys.argv[1:]]\n"
        "print(json.dumps([found, 'torch' in sys.modules]))\n"
    )
    names = list(map(str, models.values()))
    told = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    encoded, with_torch = json.loads(told.stdout)
    assert not with_torch
    assert encoded == [open_checkpoint(name).tokenizer.encode(TEXT) for name in names]


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("smolm2-135m", ConfigError, "did you mean smollm2-135m"),
        ("random:no-such", ConfigError, "no shape named"),
        ("~no-such-user/model", ConfigError, "no model named"),
        ("x" * 5000, CheckpointError, "cannot be read"),
        ("a\0b", ConfigError, "must be a name"),
    ],
)
def test_a_wrong_name_gets_the_line_that_a_checkpoint_gives(name, error, says):
    with pytest.raises(error, match=says) as told:
        open_tokenizer(name)
    with pytest.raises(error) as same:
        open_checkpoint(name)
    assert str(told.value) == str(same.value)


def test_pickled_weights_are_refused_by_their_name(tmp_path):
    path = tmp_path / "model.bin"
    path.touch()
    for opens in (open_tokenizer, open_checkpoint):
        with pytest.raises(CheckpointError, match="Gradus never does"):
            opens(str(path))
