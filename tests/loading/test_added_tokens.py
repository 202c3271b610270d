"""Facts about tokens that lie in several files of one checkpoint: each is read as transformers reads it."""

import json

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from gradus.errors import CheckpointError
from gradus.loading import open_tokenizer

TEXT = "a <|im_start|>user <s> x<|im_end|> [PAD]<tool>  b</s>"
BEGIN, END = "<s>", "<|im_end|>"


def backend(*controls, **flags):
    """One token per byte, then control tokens from id 256 on."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(c, special=True, **{"normalized": False} | flags) for c in controls])
    return made


def entry(content, **flags):
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {"content": content, **plain, **flags}


def decoder_of(*contents, first=256, **flags):
    return {"added_tokens_decoder": {str(first + at): entry(each, **flags) for at, each in enumerate(contents)}}


NAMED = {"bos_token": BEGIN, "eos_token": END}
MAP, ADDED = "special_tokens_map.json", "added_tokens.json"
# fact → control tokens of tokenizer.json, tokenizer_config.json, other files
FACTS = {
    "added_tokens_decoder": ([BEGIN], NAMED | decoder_of(BEGIN, "<|im_start|>", END), {}),
    "added_tokens_decoder, ordinary tokens": ([BEGIN], NAMED | decoder_of(BEGIN, END, "<tool>", special=False), {}),
    "added_tokens_decoder, tokens that strip": ([BEGIN, END], decoder_of(BEGIN, END, "<tool>", lstrip=True), {}),
    "added_tokens_decoder changes flags": ([BEGIN, END], NAMED | decoder_of(BEGIN, END, rstrip=True), {}),
    "added_tokens_decoder makes older files void": (
        [BEGIN],
        {"bos_token": BEGIN} | decoder_of(BEGIN, "<|im_start|>"),
        {ADDED: {"<tool>": 300}, MAP: NAMED},
    ),
    "added_tokens.json": ([BEGIN], NAMED, {ADDED: {"<|im_start|>": 257, END: 258}}),
    "added_tokens.json, in another order": ([BEGIN], NAMED, {ADDED: {END: 258, "<tool>": 257}}),
    "added_tokens.json repeats tokenizer.json": ([BEGIN, END], NAMED, {ADDED: {BEGIN: 256, END: 257}}),
    "special_tokens_map.json names": ([BEGIN, END], {}, {MAP: NAMED}),
    "special_tokens_map.json names, as objects": ([BEGIN, END], {}, {MAP: {"eos_token": {"content": END}}}),
    "special_tokens_map.json comes first": ([BEGIN, END, "</s>"], NAMED, {MAP: {"eos_token": "</s>"}}),
    "special_tokens_map.json, a new token": ([BEGIN], {}, {MAP: NAMED | {"pad_token": "[PAD]"}}),
    "a name without a token": ([BEGIN], NAMED, {}),
    "names in their usual order": ([], {"pad_token": "[PAD]", "eos_token": END, "bos_token": BEGIN}, {}),
    "a name of a vocabulary's entry": ([], {"eos_token": "a"}, {}),
    "an object of today": ([BEGIN], {"eos_token": {"__type": "AddedToken", "content": END, "special": True}}, {}),
    "a model's own name": ([BEGIN], NAMED | {"tool_token": "<tool>"}, {}),
    "extra_special_tokens": ([BEGIN, END], NAMED | {"extra_special_tokens": ["<tool>", "<|im_start|>"]}, {}),
    "extra_special_tokens by name": ([BEGIN, END], NAMED | {"extra_special_tokens": {"tool_token": "<tool>"}}, {}),
    "additional_special_tokens": ([BEGIN, END], NAMED | {"additional_special_tokens": ["<tool>"]}, {}),
    "additional_special_tokens elsewhere": ([BEGIN, END], NAMED, {MAP: {"additional_special_tokens": ["<tool>"]}}),
    "nothing but tokenizer.json": ([BEGIN, END], {}, {}),
}


def folder_with(folder, controls, settings, files):
    folder.mkdir()
    (folder / "tokenizer.json").write_text(backend(*controls).to_str())
    for name, content in {"tokenizer_config.json": settings, **files}.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("fact", FACTS)
def test_each_fact_has_the_meaning_that_transformers_gives_it(tmp_path, fact):
    transformers = pytest.importorskip("transformers")
    folder = folder_with(tmp_path / "m", *FACTS[fact])
    ours, theirs = open_tokenizer(str(folder)), transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    ids = theirs.encode(TEXT)
    assert ours.encode(TEXT) == ids
    assert (ours.bos_token_id, next(iter(ours.eos_token_ids), None)) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.vocab_size == len(theirs)
    assert ours.decode(ids, skip_special=False) == theirs.decode(ids, skip_special_tokens=False)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


# one control token of one character makes every content with it a refused one
@pytest.mark.parametrize("fact", sorted(FACTS.keys() - {"a name of a vocabulary's entry"}))
def test_no_content_becomes_a_token_that_another_file_makes_special(tmp_path, fact):
    controls, settings, files = FACTS[fact]
    template = {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    tokenizer = open_tokenizer(str(folder_with(tmp_path / "m", controls, settings | template, files)))
    ids = tokenizer.chat([{"role": "user", "content": TEXT}])
    assert tokenizer.special_token_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == TEXT


def test_a_token_that_is_listed_as_special_is_special_in_added_tokens_json_too(tmp_path):
    """transformers leaves it an ordinary one, which a user's message could then spell."""
    files = {ADDED: {"<|im_start|>": 257}, MAP: {"additional_special_tokens": ["<|im_start|>"]}}
    tokenizer = open_tokenizer(str(folder_with(tmp_path / "m", [BEGIN], {}, files)))
    assert tokenizer.special_token_ids == {256, 257}


def test_gpt2s_two_files_get_the_tokens_of_the_others(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = folder_with(tmp_path / "m", [], NAMED, {ADDED: {"<|im_start|>": 256, END: 257, BEGIN: 258}})
    (folder / "tokenizer.json").unlink()
    made = backend()
    made.model.save(str(folder))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    ours, theirs = open_tokenizer(str(folder)), transformers.GPT2Tokenizer.from_pretrained(folder)
    assert ours.encode(TEXT) == theirs.encode(TEXT)
    assert (ours.bos_token_id, ours.eos_token_ids) == (258, (257,)) == (theirs.bos_token_id, (theirs.eos_token_id,))


def test_two_files_of_another_class_are_refused(tmp_path):
    """Qwen's are cut into other words than GPT-2's, and nothing in them says how."""
    folder = folder_with(tmp_path / "m", [], {"tokenizer_class": "Qwen2Tokenizer"}, {"merges.txt": ""})
    (folder / "tokenizer.json").rename(folder / "vocab.json")
    with pytest.raises(CheckpointError, match=r"of a 'Qwen2Tokenizer' only; make a tokenizer\.json"):
        open_tokenizer(str(folder))


@pytest.mark.parametrize(
    ("settings", "files", "words"),
    [
        (decoder_of(BEGIN, END, first=257), {}, "added_tokens_decoder: gives token '<s>' the id 257, but .* at 256"),
        (decoder_of(END, first=300), {}, "'<|im_end|>' the id 300, but .* at 257".replace("|", r"\|")),
        ({}, {ADDED: {"<tool>": 256}}, "added_tokens.json: gives token '<tool>' the id 256, but .* at 257"),
        ({"added_tokens_decoder": [END]}, {}, "added_tokens_decoder must be an object"),
        ({"added_tokens_decoder": {"x": entry(END)}}, {}, "a token's id must be a whole number, got 'x'"),
        ({"added_tokens_decoder": {"257": {"content": 3}}}, {}, "added_tokens_decoder must be a text, got 3"),
        (decoder_of(END, lstrip="no"), {}, "the flags of token '<.im_end.>' must be true or false"),
        ({}, {ADDED: {END: 1.5}}, "added_tokens.json: a token's id must be a whole number, got 1.5"),
        ({}, {ADDED: {END: True}}, "a token's id must be a whole number, got True"),
        ({}, {MAP: {"eos_token": ["x"]}}, "special_tokens_map.json: eos_token must be a text"),
        ({"extra_special_tokens": "x"}, {}, "extra_special_tokens must be a list, got 'x'"),
        ({"extra_special_tokens": [None]}, {}, "extra_special_tokens must be a text, got None"),
        ({"split_special_tokens": True}, {}, "split_special_tokens is not supported"),
    ],
)
def test_files_that_contradict_each_other_are_refused_in_one_line(tmp_path, settings, files, words):
    with pytest.raises(CheckpointError, match=words) as error:
        open_tokenizer(str(folder_with(tmp_path / "m", [BEGIN], settings, files)))
    assert "\n" not in str(error.value)
