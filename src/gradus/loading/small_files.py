"""A checkpoint's small files, for writing another checkpoint like it: its configuration and its tokenizer."""

import json
from typing import Any

from gradus.errors import ConfigError
from gradus.loading.checkpoint import Checkpoint
from gradus.loading.folder import MORE_TEMPLATES
from gradus.loading.gguf.architectures import hugging_face_config
from gradus.loading.gguf.file import GGUFFile
from gradus.loading.json_file import read_object, read_text
from gradus.loading.llama2c import Llama2cFile
from gradus.loading.templates import TOOL_USE
from gradus.models.families.records import architecture

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json", "chat_template.jinja",
    f"{MORE_TEMPLATES}/*.jinja", "vocab.json", "merges.txt", "generation_config.json",
)  # fmt: skip


def small_files(checkpoint: Checkpoint) -> tuple[dict[str, Any], dict[str, str]]:
    """Return config.json's contents, and the texts of all other files by name. Raises ConfigError for random
    weights."""
    if checkpoint.source is None:
        raise ConfigError(f"{checkpoint.name}: random weights have no files")
    if checkpoint.source.is_dir():
        there = [path for name in TOKENIZER_FILES for path in checkpoint.source.glob(name) if path.is_file()]
        texts = {str(path.relative_to(checkpoint.source)): read_text(path) for path in there}
        said = read_object(checkpoint.source / "config.json")
        return said | ({} if checkpoint.config.tie_embeddings else {"tie_word_embeddings": False}), texts
    if isinstance(checkpoint.tensors, Llama2cFile):
        config = checkpoint.tensors.config
    else:
        config = hugging_face_config(GGUFFile(checkpoint.source))
    return config | {"architectures": [architecture(config["model_type"])]}, _tokenizer_of(checkpoint)


def _tokenizer_of(checkpoint: Checkpoint) -> dict[str, str]:
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        return {}
    texts = {"tokenizer.json": tokenizer.to_json()}
    templates = tokenizer.chat_templates
    files = {"chat_template.jinja": templates.default, f"{MORE_TEMPLATES}/{TOOL_USE}.jinja": templates.tool_use}
    texts |= {name: template.source for name, template in files.items() if template is not None}
    ends = {"bos_token": tokenizer.bos_token_id, "eos_token": next(iter(tokenizer.eos_token_ids), None)}
    spelled = {name: tokenizer.decode([token], skip_special=False) for name, token in ends.items() if token is not None}
    return texts | {"tokenizer_config.json": json.dumps(spelled, indent=1)}
