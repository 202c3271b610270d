"""How many experts does a batch read? Few for one token, nearly all for many.

    python -m phases.p14_experts.distinct
    python -m phases.p14_experts.distinct --model qwen3-30b-a3b

A step reads an expert's weights once if any of its tokens takes it. With every expert as likely as any other, and
tokens that choose independently, the number of experts read follows from the batch alone. Nothing here is measured.
"""

import argparse

from gradus.errors import ConfigError
from gradus.models import SHAPES, ModelConfig
from gradus.models.config import Experts, active_parameters, expert_parameters

WIDTH = 2  # bytes of a bfloat16
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def expected_distinct(count: int, chosen: int, tokens: int) -> float:
    """The expected number of `count` experts that at least one of `tokens` tokens takes, each taking `chosen`."""
    missed = (1 - chosen / count) ** tokens  # the probability that none of them takes a given expert
    return count * (1 - missed)


def experts_of(config: ModelConfig) -> list[Experts]:
    """The experts of each layer that has some. Raises ConfigError for a model without any."""
    found = [each for each in config.experts if each is not None]
    if not found:
        raise ConfigError(f"this model of family {config.family} has no experts: name one that has, as qwen3-30b-a3b")
    return found


def layer_bytes(config: ModelConfig, tokens: int) -> float:
    """Bytes of the layers' matrices that a step of `tokens` tokens reads."""
    shared = active_parameters(config)
    read = 0.0
    for experts in experts_of(config):
        one = expert_parameters(config, experts)
        shared -= experts.chosen * one
        read += expected_distinct(experts.count, experts.chosen, tokens) * one
    return WIDTH * (shared + read)


def main() -> None:
    parser = argparse.ArgumentParser(description="How many experts a batch reads, and how many bytes per token.")
    parser.add_argument("--model", default="qwen3-30b-a3b", choices=sorted(SHAPES), metavar="SHAPE")
    config = SHAPES[parser.parse_args().model]
    try:
        experts = experts_of(config)[0]
    except ConfigError as error:
        parser.error(str(error))
    print("tokens  experts read    of all  GB per step  GB per token")
    for tokens in BATCHES:
        read, size = expected_distinct(experts.count, experts.chosen, tokens), layer_bytes(config, tokens) / 1e9
        print(f"{tokens:6}{read:14.1f}{read / experts.count:10.0%}{size:13.2f}{size / tokens:14.2f}")


if __name__ == "__main__":
    main()
