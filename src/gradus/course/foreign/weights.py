"""The models that a program under test loads: one tiny Llama with random weights, in 32, 8 and 4 bits.

A folder has config.json and model.safetensors, with the names of published Llama checkpoints. In 8 and 4 bits, each
matrix `X.weight` of a layer is stored as `X.codes` and its grid: the layout is in docs/protocol.md.

    python -m gradus.course.foreign.weights models      # writes all three into a folder, to develop with
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,  # the heads' widths do not add up to the hidden size
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "torch_dtype": "float32",
}
VOCABULARY, CONTEXT = CONFIG["vocab_size"], CONFIG["max_position_embeddings"]
GROUP = 32  # weights of a row that share a grid of 4 bits
SPREAD, SEED = 0.1, 7


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of every tensor, as published Llama checkpoints have them."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        yield f"{at}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{at}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{at}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{at}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{at}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{at}.mlp.up_proj.weight", (inner, hidden)
        yield f"{at}.mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (config["vocab_size"], hidden)


def drawn() -> dict[str, Tensor]:
    """Draw the weights: normal noise, around one for norms. The same on every machine."""
    generator = torch.Generator().manual_seed(SEED)
    return {
        name: torch.randn(shape, generator=generator) * SPREAD + (1 if len(shape) == 1 else 0)
        for name, shape in shapes(CONFIG)
    }


def write(folder: Path, tensors: dict[str, Tensor], **more: Any) -> Path:
    """Write a folder of the tiny model. more: further entries of its config.json."""
    return store(folder, tensors, CONFIG | more)


def store(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """Write a model folder: config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def coded(tensors: dict[str, Tensor], bits: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Round the layers' matrices to 8 or 4 bits. Returns the stored tensors, and the weights that they mean."""
    stored, meant = {}, {}
    for name, tensor in tensors.items():
        if not name.endswith("proj.weight"):
            stored[name] = meant[name] = tensor
            continue
        parts, meant[name] = by_rows(tensor) if bits == 8 else by_groups(tensor)
        stored |= {f"{name.removesuffix('weight')}{part}": value for part, value in parts.items()}
    return stored, meant


def by_rows(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """[N, K] → int8 codes [N, K] and float scale [N]; and the weights code * scale, [N, K]."""
    scale = weight.abs().amax(dim=1) / 127
    codes = (weight / scale[:, None]).round()
    return {"codes": codes.to(torch.int8), "scale": scale}, codes * scale[:, None]


def by_groups(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """[N, K] → uint8 codes [N, K / 2], two in a byte, float scale and offset [N, K / GROUP]; and the weights
    code * scale + offset, [N, K]. Byte i of a row has code 2i in its low half, and code 2i + 1 in its high half."""
    groups = weight.unflatten(1, (-1, GROUP))
    offset = groups.amin(dim=-1)
    scale = (groups.amax(dim=-1) - offset) / 15
    codes = ((groups - offset[..., None]) / scale[..., None]).round()
    meant = (codes * scale[..., None] + offset[..., None]).flatten(1)
    whole = codes.flatten(1).to(torch.uint8)
    return {"codes": whole[:, 0::2] | (whole[:, 1::2] << 4), "scale": scale, "offset": offset}, meant


class Models:
    """The folders of a check, written when they are first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def given(self, bits: int = 32) -> Path:
        """The folder that the program loads."""
        folder = self.root / f"weights{bits}"
        if not folder.is_dir():
            more = {} if bits == 32 else {"quantization": {"bits": bits, "group": None if bits == 8 else GROUP}}
            write(folder, drawn() if bits == 32 else coded(drawn(), bits)[0], **more)
        return folder

    def meant(self, bits: int = 32) -> Path:
        """The folder with the weights that `given` means, in 32 bits: the oracle's."""
        if bits == 32:
            return self.given()
        folder = self.root / f"meant{bits}"
        if not folder.is_dir():
            write(folder, coded(drawn(), bits)[1])
        return folder


if __name__ == "__main__":
    written = Models(Path(sys.argv[1]))
    for bits in (32, 8, 4):
        print(written.given(bits))
