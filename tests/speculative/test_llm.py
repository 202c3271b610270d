"""Speculation through `LLM`: texts, stop strings, log-probabilities and limits are those without, and it says so."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from gradus import LLM, SamplingParams
from gradus.assembly.checkpoint import draft_precision
from gradus.assembly.draft_rows import fitted
from gradus.config.settings import Settings
from gradus.engine.plan import Decodes, Plan
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError
from gradus.execution.memory.device_memory import DeviceMemory
from gradus.execution.memory.plan import memory_plan
from gradus.loading import as_asked, open_checkpoint
from gradus.models.layers import Linear
from gradus.models.precision import resolve_precision
from gradus.models.shapes import SHAPES
from gradus.quantization.gguf import GGUFLinear
from gradus.quantization.int4 import Int4Linear
from gradus.quantization.int8 import Int8Linear
from gradus.quantization.precision import resolve
from tests.loading.builders import CONFIGS, TOKENS, tensors_of, write_folder, write_gguf, write_json
from tests.loading.quantized_builders import quantize_folder
from tests.pairwise import each_once

TEXT = "one two three four five six seven. one two three four five six"


def tiny(**settings) -> LLM:
    return LLM("random:tiny-llama", device="cpu", dtype="float32", **settings)


@pytest.fixture(scope="module")
def both() -> tuple[LLM, LLM]:
    return tiny(), tiny(speculate="ngram", drafts=4)


def test_it_is_in_the_settings(both):
    assert [llm.settings["speculate"] for llm in both] == [None, "ngram"]
    assert [llm.settings["drafts"] for llm in both] == [None, 4]
    assert both[0].metrics().speculation is None


@pytest.mark.parametrize(
    "params",
    [
        dict(max_tokens=60, ignore_eos=True),
        dict(max_tokens=30, ignore_eos=True, logprobs=3),
        dict(max_tokens=30, temperature=0.2, seed=3, n=3, logprobs=0),
        dict(max_tokens=1),
        dict(max_tokens=30, repetition_penalty=1.1, frequency_penalty=0.2, min_tokens=10),
    ],
)
def test_completions_are_the_same(both, params):
    plain, speculating = (llm.generate([TEXT, "a"], SamplingParams(**params)) for llm in both)
    for mine, theirs in zip(speculating, plain, strict=True):
        assert (mine.token_ids, mine.text, mine.finish_reason) == (theirs.token_ids, theirs.text, theirs.finish_reason)
        if theirs.logprobs is not None:
            for one, other in zip(mine.logprobs, theirs.logprobs, strict=True):
                assert one.token_id == other.token_id and one.logprob == pytest.approx(other.logprob, abs=1e-4)
                assert [token for token, _ in one.top] == [token for token, _ in other.top]


def test_drafts_were_verified(both):
    both[1].generate(TEXT, SamplingParams(max_tokens=60, ignore_eos=True))
    told = both[1].metrics().speculation
    assert sum(told.accepted) > 0 and told.tokens_per_step > 1


@pytest.mark.parametrize("settings", [{"quantize": "int8"}, {"quantize": "int4-g32"}, {"kv_dtype": "fp8"}])
def test_quantized_models_and_caches_give_their_own_tokens_too(settings):
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    plain, speculating = (
        tiny(**settings, **speculate).generate([TEXT, "a"], params)
        for speculate in ({}, {"speculate": "draft:random:tiny-llama", "drafts": 3})
    )
    assert [one.token_ids for one in speculating] == [one.token_ids for one in plain]


@pytest.mark.parametrize("form", ["awq", "int-quantized"])
def test_a_draft_may_come_quantized(form, tmp_path):
    """The model in float32, the draft as its folder has it."""
    write_folder(tmp_path / "model")
    quantize_folder(tmp_path / "draft", form)
    settings = {"device": "cpu", "dtype": "float32", "max_sequences": 2, "cache_tokens": 256}
    prompts, params = [[5, 6, 7], [9] * 20], SamplingParams(max_tokens=20, ignore_eos=True)
    plain = LLM(str(tmp_path / "model"), **settings).generate(prompts, params)
    speculating = LLM(str(tmp_path / "model"), speculate=f"draft:{tmp_path / 'draft'}", drafts=3, **settings)
    assert [one.token_ids for one in speculating.generate(prompts, params)] == [one.token_ids for one in plain]
    assert sum(speculating.metrics().speculation.drafted) > 0


@pytest.mark.parametrize(
    ("quantize", "drafts", "kinds"),
    [
        (None, "int8", (Linear, Int8Linear)),
        ("int8", "int4-g32", (Int8Linear, Int4Linear)),
        ("int8", None, (Int8Linear, Linear)),
    ],
)
def test_the_model_and_its_draft_are_quantized_each_as_asked(quantize, drafts, kinds):
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    plain = tiny(quantize=quantize)
    speculating = tiny(
        quantize=quantize, speculate="draft:random:tiny-llama", drafts=3, draft_quantize=drafts, max_sequences=2
    )
    runner = speculating.engine.runner
    models = runner.model, runner.step.drafter.passes.model
    assert tuple(type(each.layers[0].qkv) for each in models) == kinds
    assert [type(each.head) for each in models] == [Linear, kinds[1]], "the draft's head is rounded as well"
    assert speculating.settings["draft_quantize"] == drafts
    found = [one.token_ids for one in speculating.generate([TEXT, "a"], params)]
    assert found == [one.token_ids for one in plain.generate([TEXT, "a"], params)]
    told = speculating.metrics().speculation
    assert sum(told.accepted) > 0.2 * sum(told.drafted) > 0, "the same weights, rounded otherwise"


@pytest.mark.parametrize("drafts", [None, "int8"])
def test_a_draft_has_the_type_that_was_asked_for_beside_a_quantized_model_too(drafts):
    checkpoint, cpu = open_checkpoint("random:tiny-llama"), torch.device("cpu")
    model = resolve("float16", "int4", cpu, checkpoint.config)
    found = draft_precision(checkpoint, cpu, model, drafts)
    assert (found.weights, found.activations, found.scheme) == (torch.float16, torch.float16, drafts)


def test_a_gguf_draft_may_stay_packed(tmp_path):
    model = str(write_folder(tmp_path / "model"))
    names = [name for name in tensors_of(CONFIGS["llama"]) if name.endswith("_proj.weight")]
    draft = write_gguf(tmp_path / "draft.gguf", quantize=dict.fromkeys(names, GGMLQuantizationType.Q8_0))
    settings = {"device": "cpu", "dtype": "float32", "max_sequences": 2, "cache_tokens": 256}
    speculating = LLM(model, speculate=f"draft:{draft}", draft_quantize="stored", drafts=3, **settings)
    assert isinstance(speculating.engine.runner.step.drafter.passes.model.layers[0].output, GGUFLinear)
    prompts, params = [[5, 6, 7], [9] * 20], SamplingParams(max_tokens=20, ignore_eos=True)
    plain = LLM(model, **settings).generate(prompts, params)
    assert [one.token_ids for one in speculating.generate(prompts, params)] == [one.token_ids for one in plain]
    assert sum(speculating.metrics().speculation.accepted) > 0


@pytest.mark.parametrize(
    ("quantize", "message"),
    [
        ("int9", "draft_quantize must be int8, fp8, .* or stored .* got 'int9'"),
        (
            "stored",
            "draft_quantize stored: random:tiny-llama has no matrix that is stored as .*: leave draft_quantize out",
        ),
        ("no.yaml", "draft_quantize no.yaml: cannot be read"),
        (
            "int4-g128",
            "the draft model's lm_head: int4: groups of 128 do not divide rows of 64",
        ),
    ],
)
def test_a_draft_that_cannot_be_quantized_so_is_one_line(quantize, message):
    with pytest.raises(ConfigError, match=message) as raised:
        tiny(speculate="draft:random:tiny-llama", draft_quantize=quantize)
    assert "\n" not in str(raised.value)


def test_a_pattern_that_matches_nothing_of_the_draft_and_a_draft_quantized_twice_are_one_line(tmp_path):
    (tmp_path / "mix.yaml").write_text('"*.nothing": int8\n')
    with pytest.raises(ConfigError, match=r"draft_quantize mix-.*: pattern '\*.nothing' matches no matrix"):
        tiny(speculate="draft:random:tiny-llama", draft_quantize=str(tmp_path / "mix.yaml"))
    model, draft = write_folder(tmp_path / "model"), tmp_path / "draft"
    quantize_folder(draft, "awq")
    with pytest.raises(ConfigError, match=r"draft_quantize int8: these weights are quantized already .* leave draft_q"):
        LLM(str(model), device="cpu", dtype="float32", speculate=f"draft:{draft}", draft_quantize="int8")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speculate": "ngram", "drafts": 0}, "drafts must be a whole number between 1 and 16, got 0"),
        ({"speculate": "ngram", "drafts": 17}, "drafts must be a whole number between 1 and 16, got 17"),
        ({"speculate": "ngram", "drafts": 2.5}, "drafts must be a whole number between 1 and 16, got 2.5"),
        ({"speculate": "draft:random:tiny-llama", "drafts": -1}, "drafts must be a whole number between 1 and 16"),
        ({"drafts": 4}, "drafts does nothing without speculate"),
        ({"speculate": "eagle"}, "speculate must be"),
    ],
)
def test_bad_settings_are_one_line(settings, message):
    with pytest.raises(ConfigError, match=message) as raised:
        tiny(**settings)
    assert "\n" not in str(raised.value)


# -- a draft model -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drafted() -> LLM:
    """Drafted by the model itself, as a model of its own: loaded again, with the same random weights."""
    return tiny(speculate="draft:random:tiny-llama", drafts=3)


@pytest.fixture(scope="module")
def by_hand() -> LLM:
    """Phase p08, whose scheduler is its own."""
    return tiny(phase="p08")


def test_a_model_drafts_and_completions_are_the_same(both, drafted):
    for params in (dict(max_tokens=40, ignore_eos=True), dict(max_tokens=40, temperature=1.0, seed=3, n=2)):
        plain, speculating = (llm.generate([TEXT, "a"], SamplingParams(**params)) for llm in (both[0], drafted))
        assert [one.token_ids for one in speculating] == [one.token_ids for one in plain]
    told = drafted.metrics().speculation
    assert told.accepted == told.drafted and told.tokens_per_step > 3


@pytest.mark.parametrize("start", range(10, 14))
def test_a_stop_string_cuts_the_tokens_that_came_with_it(both, drafted, by_hand, start):
    """Four tokens per step, and stop strings that end at any of them."""
    whole = both[0].generate(TEXT, SamplingParams(max_tokens=30, ignore_eos=True))[0].text
    params = SamplingParams(max_tokens=30, ignore_eos=True, stop=[whole[start : start + 3]], logprobs=0)
    plain = both[0].generate(TEXT, params)[0]
    assert plain.finish_reason == "stop" and len(plain.token_ids) < 25
    for llm in (both[1], drafted, by_hand):
        *pieces, last = llm.stream(TEXT, params)
        done = last.completion
        assert (done.text, done.token_ids, done.stop_reason) == (plain.text, plain.token_ids, plain.stop_reason)
        assert [entry.token_id for entry in done.logprobs] == list(plain.token_ids)
        assert sum((piece.token_ids for piece in (*pieces, last)), ()) == plain.token_ids
        assert sum(len(piece.logprobs) for piece in (*pieces, last)) == len(plain.token_ids)


def test_a_long_prompt_is_caught_up_with_in_pieces(both, drafted):
    prompt = [(7 * i) % 250 for i in range(400)]
    plain, speculating = (llm.generate([prompt], SamplingParams(max_tokens=9)) for llm in (both[0], drafted))
    assert speculating[0].token_ids == plain[0].token_ids
    told = drafted.metrics().speculation
    assert told.accepted == told.drafted


def test_beyond_its_context_a_draft_drafts_nothing(both, monkeypatch, caplog):
    monkeypatch.setitem(SHAPES, "short", replace(SHAPES["tiny-llama"], context_length=48))
    llm = tiny(speculate="draft:random:short", drafts=3)
    assert "random:short drafts up to position 48" in caplog.text
    plain, speculating = (
        one.generate([[5] * 40], SamplingParams(max_tokens=30, ignore_eos=True)) for one in (both[0], llm)
    )
    assert speculating[0].token_ids == plain[0].token_ids
    assert 0 < sum(llm.metrics().speculation.drafted) <= 3 * (48 - 40)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("random:tiny-gemma3", "a draft reads the pages of layers that see everything"),
        ("nothing-of-that-name", "nothing-of-that-name"),
    ],
)
def test_a_draft_that_does_not_go_with_the_model_is_one_line(name, message):
    with pytest.raises(ConfigError, match=message) as raised:
        tiny(speculate=f"draft:{name}")
    assert "\n" not in str(raised.value)


def sized(folder, rows: int, seed: int = 0) -> str:
    """A checkpoint whose rows of tokens are the same, whatever their number. Padding is unlikely, as in real models."""
    write_folder(folder)
    write_json(folder / "config.json", CONFIGS["llama"] | {"vocab_size": rows})
    tensors = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        more = 0.01 * torch.randn(400, 64, generator=torch.Generator().manual_seed(seed))
        tensors[name] = torch.cat([tensors[name][:TOKENS], more])[:rows].contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


@pytest.mark.parametrize(
    "model_rows, draft_rows, settings",
    each_once(
        [(TOKENS + 40, TOKENS + 8), (TOKENS + 8, TOKENS + 40)],
        [{}, {"switch_off": ["kernels"]}, {"draft_quantize": "int8"}],
    ),
)
def test_a_draft_of_the_same_tokenizer_may_have_other_padding(tmp_path, model_rows, draft_rows, settings):
    model, draft = sized(tmp_path / "model", model_rows), sized(tmp_path / "draft", draft_rows)
    asked = {"device": "cpu", "dtype": "float32", "max_sequences": 2, "cache_tokens": 512}
    speculating = LLM(model, speculate=f"draft:{draft}", drafts=3, **asked, **settings)
    plain = LLM(model, **asked)
    prompts = [[5, 6, 7], [9] * 20, [model_rows - 1, 4]]  # the last one's first token is beyond a small draft's rows
    for params in (dict(), dict(temperature=0.5, seed=3), dict(repetition_penalty=1.2, logit_bias={model_rows - 1: 5})):
        both = [
            llm.generate(prompts, SamplingParams(max_tokens=20, ignore_eos=True, **params))
            for llm in (plain, speculating)
        ]
        assert [one.token_ids for one in both[1]] == [one.token_ids for one in both[0]]
    told = speculating.metrics().speculation
    assert sum(told.accepted) > 0.4 * sum(told.drafted) > 0
    drafter = speculating.engine.runner.step.drafter.passes.model
    assert drafter.config.vocab_size == model_rows


def test_a_packed_head_of_other_padding_is_resized_as_well(tmp_path):
    names = ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.down_proj.weight")
    file = write_gguf(tmp_path / "draft.gguf", quantize=dict.fromkeys(names, GGMLQuantizationType.Q8_0))
    draft = as_asked(open_checkpoint(str(file)), "stored")
    whole = draft.tensors.read("lm_head.weight")
    for rows in (TOKENS + 8, draft.config.vocab_size + 8):
        model = open_checkpoint(sized(tmp_path / str(rows), rows))
        found = fitted(draft, model)
        assert found.config.vocab_size == rows and found.tensors.shape("lm_head.weight") == (rows, 64)
        for part, before in zip(found.tensors.read("lm_head.weight").parts, whole.parts, strict=True):
            count = min(rows, len(before))
            assert len(part) == rows and torch.equal(part[:count], before[:count])
            assert all(torch.equal(row, before[-1]) for row in part[len(before) :])


def test_a_draft_of_another_tokenizer_is_refused_by_its_first_other_token(tmp_path):
    model = str(write_folder(tmp_path / "model"))
    message = r"tiny-llama speaks other tokens than .*model \(token 0 is b'\\x00' there, b'' here\): choose a draft"
    with pytest.raises(ConfigError, match=message) as raised:
        LLM(model, device="cpu", dtype="float32", speculate="draft:random:tiny-llama")
    assert "\n" not in str(raised.value)


def test_without_tokenizers_a_draft_must_have_the_models_size(tmp_path):
    model, draft = tmp_path / "model", tmp_path / "draft"
    for folder, rows in ((model, 360), (draft, 340)):
        sized(folder, rows)
        (folder / "tokenizer.json").unlink()
    with pytest.raises(
        ConfigError, match=r"has a vocabulary of 340 tokens and .*model one of 360, and without both token"
    ):
        LLM(str(model), device="cpu", dtype="float32", speculate=f"draft:{draft}")


def test_a_model_without_room_for_its_draft_is_one_line():
    config, cpu = SHAPES["tiny-llama"], torch.device("cpu")
    precision = resolve_precision("float32", cpu, config)
    options = Settings(memory_fraction=1.0, speculate="draft:x").options(ModelLimits(320, 512), "cpu")

    def plan(free: int, draft=None):
        return memory_plan(config, options, cpu, precision, memory=DeviceMemory(free, None), draft=draft)

    alone = plan(10**10)
    free = alone.weight_bytes + alone.step_bytes + alone.table_bytes + alone.graph_bytes + alone.weight_bytes // 2
    assert plan(free).fits
    message = r"the model's and the draft's weights take .* or take a smaller draft"
    with pytest.raises(ConfigError, match=message) as raised:
        plan(free, (config, precision)).applied(options)
    assert "\n" not in str(raised.value)


def test_memory_counts_the_draft():
    config, cpu = SHAPES["tiny-llama"], torch.device("cpu")
    precision, memory = resolve_precision("float32", cpu, config), DeviceMemory(10**10, None)

    def plan(**settings):
        options = Settings(memory_fraction=0.1, **settings).options(ModelLimits(320, 512), "cpu")
        draft = (config, precision) if "draft:" in settings.get("speculate", "") else None
        return memory_plan(config, options, cpu, precision, memory=memory, draft=draft)

    alone, both = plan(), plan(speculate="draft:x", cache_tokens=512)
    assert both.weight_bytes == 2 * alone.weight_bytes
    assert both.cache_bytes == 2 * plan(cache_tokens=512, speculate="ngram", drafts=1).cache_bytes


def test_pages_are_wiped_in_a_step_that_has_nothing_left_to_run_and_in_the_drafts_storage_too():
    """A plan names them once. Its only decode has reached its end, which the device knew and the scheduler did not."""
    runner = tiny(speculate="draft:random:tiny-llama", drafts=3).engine.runner
    storages = runner.attention.storage, runner.step.drafter.passes.attention.storage
    for storage in storages:
        storage.keys[:, 4:7] = storage.values[:, 4:7] = torch.nan
    runner.step.history.lengths[0] = 3
    one = np.array([2])
    result = runner.run(Plan(wiped=(5,), decodes=Decodes(np.array([0]), one, one)))
    assert result.rows == 1, "padding"
    for storage in storages:
        for part in (storage.keys, storage.values):
            assert part[:, 5].isfinite().all() and part[:, 4].isnan().all() and part[:, 6].isnan().all()
