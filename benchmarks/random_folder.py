"""Write a checkpoint that every engine reads: a shape's random weights in bfloat16, and a real model's tokenizer.

    PYTHONPATH=src:. python3 benchmarks/random_folder.py --shape smollm2-135m --tokenizer smollm2-135m FOLDER
    PYTHONPATH=src:. python3 benchmarks/random_folder.py --tokenizer qwen2.5-coder-0.5b FOLDER

For comparisons with another engine in which text matters: on servers, and with grammars. The weights are those of
`random:<shape>`. Without a shape, only the tokenizer is written: a few megabytes, to carry to a machine that has no
models, where FOLDER is the `--tokenizer` of the whole checkpoint.
"""

import argparse
import json
import sys
from pathlib import Path

from gradus.bench.run.script import ran
from gradus.bench.studies import beside
from gradus.errors import ConfigError
from gradus.loading import load_model, open_checkpoint
from gradus.loading.checkpoint import RANDOM, open_tokenizer

WEIGHTS = "model.safetensors"


def write_folder(folder: Path, shape: str, tokenizer: str, device: str = "auto") -> Path:
    """Write the whole checkpoint, unless the folder has one: its weights are written last. Returns the folder."""
    if (folder / WEIGHTS).exists():
        return folder
    import torch
    from safetensors.torch import save_file

    from gradus.bench.contenders.gguf_files import OwnTensors
    from gradus.models.precision import resolve_device

    checkpoint = open_checkpoint(RANDOM + shape)
    write_tokenizer(folder, tokenizer)
    described = beside.vllm_config(checkpoint.config)
    (folder / "config.json").write_text(json.dumps(described, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": described["eos_token_id"]}))
    model = load_model(checkpoint, dtype=torch.bfloat16, device=resolve_device(device))
    tensors = OwnTensors(model)
    part = folder / f"{WEIGHTS}.part"
    save_file({name: tensors.read(name).contiguous() for name in tensors.names()}, part, metadata={"format": "pt"})
    part.rename(folder / WEIGHTS)
    return folder


def write_tokenizer(folder: Path, name: str) -> None:
    """Write tokenizer.json and tokenizer_config.json. Raises ConfigError if the model has no tokenizer."""
    tokenizer = open_tokenizer(name)
    if tokenizer is None:
        raise ConfigError(f"{name}: has no tokenizer")
    backend = json.loads(tokenizer.to_json())
    ends = {"eos_token": next(iter(tokenizer.eos_token_ids), None), "bos_token": tokenizer.bos_token_id}
    spelled = {entry["id"]: entry["content"] for entry in backend["added_tokens"]}
    settings = {kind: spelled[token] for kind, token in ends.items() if token is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(backend, ensure_ascii=False), encoding="utf-8")
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", help="as in smollm2-135m; by default, only the tokenizer is written")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", required=True, help="the model, or folder, whose tokenizer it is")
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    if asked.shape:
        write_folder(asked.folder, asked.shape, asked.tokenizer, asked.device)
    else:
        write_tokenizer(asked.folder, asked.tokenizer)


if __name__ == "__main__":
    sys.exit(ran(main))
