"""Whatever a family's configuration says, our model computes what transformers computes: logits, and so tokens."""

from random import Random

import pytest

from tests.models.conftest import loaded, reference, run
from tests.models.random_configs import RANDOM

RELATIVE = 1e-4  # of the largest logit
FEW, MANY = 3, 20  # configurations of each family: in `make test`, and in `make stress`


def numbered() -> list:
    return [
        pytest.param(kind, number, marks=() if number < FEW else pytest.mark.stress, id=f"{kind} {number}")
        for kind in RANDOM
        for number in range(MANY)
    ]


@pytest.mark.parametrize(("kind", "number"), numbered())
def test_a_random_configuration_gives_the_logits_of_transformers(kind: str, number: int) -> None:
    want = reference(kind, **RANDOM[kind](Random(f"{kind} {number}")))
    found = run(loaded(want.config, want.tensors), want.tokens)
    assert want.logits.std() > 0.1, "weights too small for the comparison to mean anything"
    assert (found - want.logits).abs().max() <= RELATIVE * want.logits.abs().max()
    assert found.argmax(-1).tolist() == want.logits.argmax(-1).tolist()
