"""The open task: fewer bytes between two ranks.

p12 exchanges whatever is simplest: summands for every row, embeddings that one rank has, and the scores of all tokens
for one that is chosen. The bytes that leave a rank are counted, and those of its weights.
"""

import gc
from collections.abc import Iterator
from random import Random
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from gradus import phases
from gradus.course.open.declaration import Open, Refused, Trial
from gradus.course.open.judge import again
from gradus.course.open.workload import Ask, options, prompt, small_model, verify
from gradus.engine.request import Request, SamplingParams
from gradus.models import Model
from phases.p12_parallelism.exchange import Exchange, Sent
from phases.p12_parallelism.rank import answers
from phases.p12_parallelism.threads import on_all_ranks

START = '''"""p12's open task. So far this is p12 itself, which scores 1.00."""

import torch

from gradus.models import Model
from phases.p12_parallelism import model
from phases.p12_parallelism.exchange import Exchange


@torch.no_grad()
def cut(whole: Model, exchange: Exchange) -> Model:
    """Make this rank's model. Change what you like: what is cut, what is copied, what is sent instead of what.

    `exchange` has `place`, and `gather`, `send` and `receive` as p12's. Every rank must choose the model's tokens, each
    with the model's score in `logits`: what is sent is not rounded.
    """
    return model.cut(whole, exchange)
'''

RANKS, REQUESTS, TOKENS = 2, 4, 16
EXACT = 1e-4  # sums in another order differ by some millionths, halves by a thousandth


class Counted:
    """p12's exchange, as far as a model uses it, with a count of the bytes that leave."""

    def __init__(self, exchange: Exchange) -> None:
        self.place, self.__exchange = exchange.place, exchange
        self.__sent = 0

    def gather(self, x: Tensor) -> Tensor:
        self.__sent += x.numel() * x.element_size() * (self.place.parts - 1)
        return self.__exchange.gather(x)

    def send(self, x: Tensor, rank: int) -> Sent:
        self.__sent += x.numel() * x.element_size()
        return self.__exchange.send(x, rank)

    def receive(self, x: Tensor, rank: int) -> Tensor:
        return self.__exchange.receive(x, rank)

    def sent(self) -> int:
        return self.__sent


def trial(yours: Any, seed: int) -> Trial:
    """All ranks run the same requests with p03's engine, and all must give the model's tokens."""
    random, whole = Random(seed), small_model(seed)
    wanted = [Ask(f"r{number}", prompt(random, random.randint(4, 12)), TOKENS) for number in range(REQUESTS)]
    settings, params = options(whole, max_sequences=REQUESTS), SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    requests = [Request.create(ask.name, list(ask.prompt), params, settings.limits) for ask in wanted]
    files = [yours, *(again(yours) for _ in range(1, RANKS))]  # each rank has variables of its own

    def run(exchange: Exchange) -> tuple[dict[str, list[int]], int, int, Tensor]:
        counted = Counted(exchange)
        part: Model = files[exchange.place.rank].cut(whole, counted)
        engine = phases.load("p03").build(part, settings)
        tokens, sent = answers([engine], requests), counted.sent()
        return tokens, sent, kept(part, whole), best_scores(part, wanted[0])

    ranks, scores = on_all_ranks(run, parts=RANKS), best_scores(whole, wanted[0])
    for tokens, _, _, mine in ranks:
        verify(whole, wanted, {name: [(token, None) for token in each] for name, each in tokens.items()})
        if (error := float((mine - scores).abs().max())) > EXACT:
            raise Refused(f"a rank's best score differs from the model's by {error:.5f}: something was rounded")
    return {"sent": sum(sent for _, sent, _, _ in ranks), "kept": max(mine for _, _, mine, _ in ranks)}


@torch.inference_mode()
def best_scores(model: Model, ask: Ask) -> Tensor:
    """The score of the likeliest token after each token of a prompt."""
    attention = phases.find("p00").module("no_cache").Recompute(model.config)
    hidden = model(torch.tensor(ask.prompt), torch.arange(len(ask.prompt)), attention)
    return model.logits(hidden).amax(dim=-1)


def kept(part: Model, whole: Model) -> int:
    """Bytes of a rank's own weights. Raises Refused if some of them are the whole model's: they would not be there."""
    storages = {storage.data_ptr(): storage.nbytes() for storage in storages_of(part)}
    if storages.keys() & {storage.data_ptr() for storage in storages_of(whole)}:
        raise Refused("a rank's weights are copies of its part, and not views of the whole model's")
    return sum(storages.values())


def storages_of(model: Model) -> Iterator[UntypedStorage]:
    """The memory of every tensor that a model refers to, as a parameter or in any other way: in a list, a closure."""
    left, seen = [model], set()
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, (type, ModuleType, Counted)):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            yield one.untyped_storage()
        elif isinstance(one, FunctionType):  # and not the names of its file
            left += [one.__closure__, one.__defaults__, one.__kwdefaults__]
        else:
            left += gc.get_referents(one)


TASK = Open(
    goal="Cut a model over two ranks that send 65 % of the bytes that p12's send, and keep at most 15 % more weights.",
    counts="sent",
    unit="bytes that leave the ranks",
    reach=0.65,
    bounds={"kept": 1.15},
    trial=trial,
    start=START,
    trials=2,
)
