"""Loading a model by every kind of name."""

import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradus import LLM, SamplingParams
from gradus.errors import CheckpointError, ConfigError, RequestError
from gradus.execution.memory.plan import memory_plan
from gradus.loading import Tokenizer, load_model, model_name, open_checkpoint
from gradus.loading.folder import read_config
from gradus.models import SHAPES, parameter_count
from gradus.models.families.records import write_config
from tests.loading.builders import CHATML, CONFIGS, FAMILIES, tensors_of, write_folder, write_gguf, write_json


class Watcher:
    """A Progress that remembers."""

    def __init__(self):
        self.tasks, self.done = [], 0

    def begin(self, task, total):
        self.tasks.append((task, total))
        self.done = 0

    def advance(self, amount):
        self.done += amount

    def note(self, text):
        self.tasks.append((text, None))


def load(name, **options):
    return load_model(open_checkpoint(str(name)), **({"dtype": torch.float32, "device": "cpu"} | options))


@pytest.mark.parametrize("family", FAMILIES)
def test_one_file_shards_and_gguf_give_the_same_model(tmp_path, family):
    whole = load(write_folder(tmp_path / "whole", family)).state_dict()
    shards = load(write_folder(tmp_path / "shards", family, shards=3)).state_dict()
    from_gguf = load(write_gguf(tmp_path / "model.gguf", family)).state_dict()
    assert whole.keys() == shards.keys() == from_gguf.keys()
    for name, value in whole.items():
        torch.testing.assert_close(shards[name], value, rtol=0, atol=0)
        torch.testing.assert_close(from_gguf[name], value, rtol=0, atol=2e-7)  # Gemma: one added, one taken away


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt2"])
def test_a_head_that_is_called_tied_and_is_not_makes_the_logits(tmp_path, family):
    """As transformers has it, whose words are that both are there with different values."""
    transformers = pytest.importorskip("transformers")
    folder = write_folder(tmp_path / "tied", family)
    with_own_head(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = [5, 9, 200, 31]
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    llm = LLM(str(folder), device="cpu", dtype="float32")
    (done,) = llm.generate([ids], SamplingParams(max_tokens=1, ignore_eos=True, logprobs=5))
    for token, logprob in done.logprobs[0].top:
        assert logprob == pytest.approx(expected[token].item(), abs=2e-3)
    apart, tied = (
        memory_plan(replace(llm.config, tie_embeddings=tied), llm.options, torch.device("cpu"), llm.precision)
        for tied in (llm.config.tie_embeddings, True)
    )
    assert apart.weight_bytes - tied.weight_bytes == 4 * llm.config.vocab_size * llm.config.hidden_size


def with_own_head(folder):
    """As after training that untied the two, in a folder that still calls them tied."""
    tensors = load_file(folder / "model.safetensors")
    table = next(value for name, value in tensors.items() if name.endswith(("embed_tokens.weight", "wte.weight")))
    head = torch.randn(table.shape, generator=torch.Generator().manual_seed(3))
    save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_checkpoint_says_what_it_is(tmp_path):
    folder = write_folder(tmp_path / "tiny", dtype=torch.bfloat16)
    checkpoint = open_checkpoint(str(folder))
    assert (checkpoint.name, checkpoint.source, checkpoint.license) == (str(folder), folder, None)
    assert checkpoint.size_bytes == (folder / "model.safetensors").stat().st_size
    assert checkpoint.config.eos_token_ids == (2, 0)  # of config.json, then of generation_config.json
    assert checkpoint.tokenizer.bos_token_id == 0 and checkpoint.tokenizer.eos_token_ids == (2,)
    assert open_checkpoint(str(write_gguf(tmp_path / "m.gguf"))).license == "apache-2.0"


@pytest.mark.parametrize(
    ("shape", "nested", "more", "ends"),
    [
        ("tiny-phi3", False, [7, 257, 8], (257, 7, 8)),  # the end of a text, and Phi's <|end|> and <|assistant|>
        ("tiny-ministral3", False, 257, (257,)),
        ("tiny-ministral3", True, [257, 106, 50], (257, 106, 50)),  # as Gemma 4's: of a text, a turn and a call
    ],
)
def test_all_ends_of_the_generation_config_count_also_for_a_text_part(tmp_path, shape, nested, more, ends):
    raw = write_config(SHAPES[shape])
    write_json(tmp_path / "config.json", {"model_type": "mistral3", "text_config": raw} if nested else raw)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": more})
    assert read_config(tmp_path).eos_token_ids == ends


def test_stored_types_are_converted_to_the_one_asked_for(tmp_path):
    for stored in (torch.float16, torch.bfloat16, torch.float64):
        folder = write_folder(tmp_path / str(stored), dtype=stored)
        for wanted in (torch.float32, torch.bfloat16):
            weight = load(folder, dtype=wanted).state_dict()["embedding.weight"]
            expected = tensors_of(CONFIGS["llama"])["model.embed_tokens.weight"].to(stored).to(wanted)
            assert weight.dtype == wanted and torch.equal(weight, expected)


def test_progress_reports_the_bytes_of_the_files(tmp_path):
    watcher = Watcher()
    checkpoint = open_checkpoint(str(write_folder(tmp_path / "tiny")))
    load_model(checkpoint, dtype=torch.float32, device="cpu", progress=watcher)
    assert watcher.tasks == [(f"loading {model_name(checkpoint.name)}", checkpoint.size_bytes)]
    assert watcher.done == pytest.approx(checkpoint.size_bytes, rel=0.01)


def test_random_models_are_the_same_every_time_and_speak_bytes():
    checkpoint = open_checkpoint("random:tiny-llama")
    one, two = (load("random:tiny-llama").state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert checkpoint.tokenizer.encode("né") == [110, 0xC3, 0xA9]
    assert checkpoint.tokenizer.decode([110, 0xC3, 0xA9, 300]) == "né"
    assert checkpoint.config is SHAPES["tiny-llama"] and checkpoint.source is None
    assert checkpoint.size_bytes == 2 * parameter_count(checkpoint.config)
    assert checkpoint.tokenizer.chat([{"role": "user", "content": "a"}]) == list(b"user: a\nassistant:")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smolm2-135m", ["smolm2-135m", "did you mean smollm2-135m", "hub id"]),
        ("./missing", ["./missing", "an existing folder"]),
        ("random:llama-3.2-1B", ["did you mean llama-3.2-1b", "known shapes"]),
        ("random:", ["no shape named"]),
        ("", ["model must be"]),
        ("../../missing/passwd", ["no model named"]),
        ("a/b/c", ["no model named"]),
        ("x" * 5000, ["x" * 70]),
        ("nul\0byte", ["nul"]),
        ("~nobody-here/model", ["no model named"]),
    ],
)
def test_an_unknown_name_gets_one_line_that_says_what_is_accepted(name, words):
    with pytest.raises((ConfigError, CheckpointError)) as error:
        open_checkpoint(name)
    message = str(error.value)
    assert "\n" not in message and len(message) < 600
    assert all(word in message for word in words)


def test_a_known_model_that_is_not_pulled_says_how_to_pull_it(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"run `gradus pull gemma3-270m` \(253 MB, Gemma"):
        open_checkpoint("gemma3-270m")


def test_a_relative_home_is_refused(monkeypatch):
    monkeypatch.setenv("GRADUS_HOME", "models")
    with pytest.raises(ConfigError, match="absolute path"):
        open_checkpoint("smollm2-135m")


def test_without_a_tokenizer_a_model_still_loads(tmp_path):
    folder = write_folder(tmp_path / "tiny")
    (folder / "tokenizer.json").unlink()
    assert open_checkpoint(str(folder)).tokenizer is None
    load(folder)


def test_a_model_too_large_for_its_files_is_refused_before_memory_is_taken(tmp_path):
    folder = write_folder(tmp_path / "tiny")
    write_json(folder / "config.json", CONFIGS["llama"] | {"hidden_size": 1 << 20, "num_hidden_layers": 4000})
    with pytest.raises(CheckpointError, match="do not belong together"):
        load(folder)


def test_a_failed_load_leaves_no_model(tmp_path):
    """The last tensor that is read is bad: the ones before were fine, and still nothing comes out."""
    checkpoint = open_checkpoint(str(write_folder(tmp_path / "tiny")))
    sound = checkpoint.tensors.read
    last = list(checkpoint.tensors.names())[-1]
    checkpoint.tensors.read = lambda name: sound(name) * (float("nan") if name == last else 1.0)
    with pytest.raises(CheckpointError, match="NaN"):
        load_model(checkpoint, dtype=torch.float32, device="cpu")


# -- what lies in a folder ---------------------------------------------------------------------------------------------


def test_gpt2s_two_tokenizer_files_are_enough(tmp_path):
    folder = write_folder(tmp_path / "tiny")
    whole = open_checkpoint(str(folder)).tokenizer
    import tokenizers

    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).model.save(str(folder))
    (folder / "tokenizer_config.json").unlink()
    parts = open_checkpoint(str(folder)).tokenizer
    text = "the cat sat, <|endoftext|> naïve 👍"
    assert parts.encode(text) == whole.encode(text) and parts.decode(parts.encode("naïve 👍")) == "naïve 👍"
    assert not parts.has_chat_template


def test_the_templates_own_file_comes_before_the_settings(tmp_path):
    folder = write_folder(tmp_path / "tiny")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    tokenizer = open_checkpoint(str(folder)).tokenizer
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "hi!"


def test_of_several_named_templates_the_default_is_taken(tmp_path):
    folder = write_folder(tmp_path / "tiny")
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": CHATML}]
    write_json(folder / "tokenizer_config.json", {"chat_template": named})
    assert open_checkpoint(str(folder)).tokenizer.has_chat_template


def test_add_bos_token_is_obeyed(tmp_path):
    folder = write_folder(tmp_path / "tiny")
    for wanted in (True, False):
        write_json(folder / "tokenizer_config.json", {"bos_token": "<|endoftext|>", "add_bos_token": wanted})
        tokenizer = open_checkpoint(str(folder)).tokenizer
        assert (tokenizer.encode("cat")[0] == 0) is wanted
        assert tokenizer.encode("cat", special_tokens=False)[0] != 0


def test_no_template_says_what_to_do_instead(tmp_path):
    folder = write_folder(tmp_path / "tiny")
    (folder / "tokenizer_config.json").unlink()
    tokenizer: Tokenizer = open_checkpoint(str(folder)).tokenizer
    with pytest.raises(RequestError, match="no chat template; send its text as a prompt") as error:
        tokenizer.chat([{"role": "user", "content": "hi"}])
    assert error.value.param == "messages"


@pytest.mark.parametrize("pickled", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_pickled_weights_are_refused_with_the_reason(tmp_path, pickled):
    folder = write_folder(tmp_path / "tiny")
    (folder / "model.safetensors").rename(folder / pickled)
    for name in (folder, folder / pickled):
        with pytest.raises(CheckpointError, match=r"can run code.*save_pretrained"):
            open_checkpoint(str(name))


def test_nothing_in_a_model_folder_is_executed(tmp_path):
    folder = write_folder(tmp_path / "tiny")
    code = f"open({str(tmp_path / 'ran')!r}, 'w').close()"
    for name in ("modeling_llama.py", "configuration.py", "__init__.py", "tokenization.py"):
        (folder / name).write_text(code)
    auto = {
        "AutoConfig": "configuration.C",
        "AutoModelForCausalLM": "modeling_llama.M",
        "AutoTokenizer": "tokenization.T",
    }
    write_json(folder / "config.json", CONFIGS["llama"] | {"auto_map": auto, "trust_remote_code": True})
    write_json(folder / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": "tokenization.T"}})
    load(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", "{", "config.json: not valid JSON"),
        ("config.json", "[]", "config.json: must be a JSON object"),
        ("config.json", "[" * 100_000, "config.json: not valid JSON"),
        ("config.json", '{"model_type": "mamba"}', "config.json: model configuration: model_type 'mamba'"),
        ("config.json", '{"quantization_config": 4}', "quantization_config must be an object"),
        ("config.json", b"\xff\xfe", "config.json: not UTF-8"),
        ("generation_config.json", '{"eos_token_id": "end"}', "eos_token_id must be a token id"),
        ("generation_config.json", '{"eos_token_id": 10000}', "not in the vocabulary"),
        ("tokenizer.json", "{}", "tokenizer.json: not a tokenizer that can be used"),
        ("tokenizer.json", "\0", "tokenizer.json: not a tokenizer that can be used"),
        ("tokenizer_config.json", '{"bos_token": 7}', "bos_token must be a text"),
        ("tokenizer_config.json", '{"chat_template": 7}', "chat_template must be a text"),
        ("tokenizer_config.json", '{"chat_template": "{% for"}', "not a valid template"),
        ("chat_template.jinja", "x" * 300_000, "at most 262144"),
        ("model.safetensors", None, "neither model.safetensors nor"),
    ],
)
def test_a_broken_file_is_named(tmp_path, file, content, words):
    folder = write_folder(tmp_path / "tiny")
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((CheckpointError, ConfigError)) as error:
        open_checkpoint(str(folder))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_gguf_in_a_folder_is_pointed_at(tmp_path):
    folder = write_folder(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    write_gguf(folder / "tiny.gguf")
    with pytest.raises(CheckpointError, match=r"to load tiny\.gguf, give the path of that file"):
        open_checkpoint(str(folder))


def test_only_sentencepieces_own_file_is_not_enough(tmp_path):
    folder = write_folder(tmp_path / "tiny")
    shutil.move(folder / "tokenizer.json", folder / "tokenizer.model")
    with pytest.raises(CheckpointError, match=r"has tokenizer\.model only; make a tokenizer\.json"):
        open_checkpoint(str(folder))
