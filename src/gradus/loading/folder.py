"""A folder in Hugging Face's layout: its configuration and its tokenizer, from the files that it has.

    config.json              the architecture                        generation_config.json   more end-of-text tokens,
                                                                                              sampling parameters
    tokenizer.json           the whole tokenizer …                   vocab.json, merges.txt   … or GPT-2's two files
    tokenizer_config.json    special tokens, chat templates          chat_template.jinja      the template, if newer
    special_tokens_map.json, added_tokens.json   tokens, if older    additional_chat_templates/   others by name

Only data is read. Code that a configuration points to (`auto_map`) and pickled files are never looked at.
"""

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from gradus.errors import CheckpointError, ConfigError
from gradus.loading.added_tokens import read_declared
from gradus.loading.json_file import read_object, read_object_if_there, read_text
from gradus.loading.quoting import quoted
from gradus.loading.templates import DEFAULT, USED, ChatTemplates, Source, read_templates
from gradus.loading.tokenizer import Tokenizer, begin_texts_with, building, read_tokenizer_json
from gradus.models.config import ModelConfig
from gradus.models.families import records

QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json")  # older files of AutoGPTQ and AutoAWQ
TWO_FILES = (None, "GPT2Tokenizer", "GPT2TokenizerFast")  # other classes cut the same two files' text into other words
CONVERT = "make a tokenizer.json of it with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
MORE_TEMPLATES = "additional_chat_templates"  # transformers 5's folder of named ones


def read_config(folder: Path) -> ModelConfig:
    """Read config.json. Raises ConfigError or CheckpointError, naming the file and the key."""
    raw = read_raw_config(folder)
    try:
        return records.read_config(raw)
    except ConfigError as error:
        raise ConfigError(f"config.json: {error}") from error


def read_raw_config(folder: Path) -> dict[str, Any]:
    """Read config.json as it is, with the end-of-text tokens that generation_config.json adds."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder}: has no config.json")
    raw = read_object(path)
    more_ends = read_object_if_there(folder / "generation_config.json").get("eos_token_id")
    if more_ends is not None:
        raw["eos_token_id"] = [*_as_list(raw.get("eos_token_id")), *_as_list(more_ends)]
    return raw


def read_quantization(folder: Path) -> dict[str, Any] | None:
    """Read the quantization config from config.json, or from a separate file; None if there is none."""
    found = read_object_if_there(folder / "config.json").get("quantization_config")
    for name in QUANTIZATION_FILES:
        found = found or read_object_if_there(folder / name) or None
    if found is not None and not isinstance(found, dict):
        raise ConfigError(f"config.json: quantization_config must be an object, got {quoted(found)}")
    return found


def read_tokenizer(folder: Path, name: str = "") -> Tokenizer | None:
    """Read the tokenizer; None if the folder has none: the model then works with token ids. Raises CheckpointError.

    name: the model's.
    """
    settings = read_object_if_there(folder / "tokenizer_config.json")
    with building("tokenizer.json"):
        backend = _backend(folder, settings.get("tokenizer_class"))
        return None if backend is None else _finish(backend, folder, settings, name)


def _finish(backend: tokenizers.Tokenizer, folder: Path, settings: dict[str, Any], name: str) -> Tokenizer:
    """Add what the folder's other files say: more tokens, which of them begin and end a text, and chat templates."""
    if settings.get("split_special_tokens"):
        raise CheckpointError("tokenizer_config.json: split_special_tokens is not supported")
    declared = read_declared(folder, settings)
    declared.add_to(backend)
    bos, eos = (declared.id_of(name, backend) for name in ("bos_token", "eos_token"))
    wanted = settings.get("add_bos_token")
    if isinstance(wanted, bool) and bos is not None and wanted != (backend.encode("a").ids[:1] == [bos]):
        begin_texts_with(backend, bos if wanted else None, None)
    templates = _chat_templates(folder, settings)
    return Tokenizer(
        backend,
        bos_token_id=bos,
        eos_token_ids=() if eos is None else (eos,),
        chat_template=templates.default,
        tool_template=templates.tool_use,
        model_name=name,
    )


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _backend(folder: Path, kind: object) -> tokenizers.Tokenizer | None:
    whole = folder / "tokenizer.json"
    if whole.is_file():
        return read_tokenizer_json(read_text(whole), whole.name)
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if vocabulary.is_file() and merges.is_file():
        if kind not in TWO_FILES:
            raise CheckpointError(f"{folder}: has vocab.json and merges.txt of a {quoted(kind)} only; {CONVERT}")
        return _gpt2_backend(vocabulary, merges)
    if (folder / "tokenizer.model").is_file():
        raise CheckpointError(f"{folder}: has tokenizer.model only; {CONVERT}")
    return None


def _gpt2_backend(vocabulary: Path, merges: Path) -> tokenizers.Tokenizer:
    """Build GPT-2's tokenizer from two files, which preceded tokenizer.json; everything else about it is fixed."""
    vocab = read_object(vocabulary)
    count = len(vocab)
    if not all(type(index) is int and 0 <= index < count for index in vocab.values()):
        raise CheckpointError(f"{vocabulary.name}: must give its {count} tokens the numbers 0 to {count - 1}")
    pairs: list[Any] = [
        tuple(line.split(" "))
        for line in read_text(merges).split("\n")
        if line.strip() and not line.startswith("#version")
    ]
    for pair in pairs:
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocab.keys():
            raise CheckpointError(f"{merges.name}: {quoted(' '.join(pair))} does not join two tokens into one")
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    if "<|endoftext|>" in vocab:
        backend.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return backend


def _chat_templates(folder: Path, settings: dict[str, Any]) -> ChatTemplates:
    """Read the templates from files of their own, or from tokenizer_config.json if there are none."""
    own = {DEFAULT: folder / "chat_template.jinja"}
    own |= {path.name.removesuffix(".jinja"): path for path in sorted((folder / MORE_TEMPLATES).glob("*.jinja"))}
    found = {
        name: Source(str(path.relative_to(folder)), read_text(path) if name in USED else None)
        for name, path in own.items()
        if path.is_file()
    }
    return read_templates(found or _listed_templates(settings.get("chat_template")), folder.name)


def _listed_templates(entry: object) -> dict[str, Source]:
    """Read tokenizer_config.json's entry: a text, or a list of named ones."""
    where = "tokenizer_config.json: chat_template"
    if not isinstance(entry, list):
        return {} if entry is None else {DEFAULT: Source(where, entry)}
    found = {}
    for item in entry:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise CheckpointError(f"{where} must list objects with a name and a template, got {quoted(item)}")
        found[item["name"]] = Source(f"{where} {quoted(item['name'])}", item.get("template"))
    return found
