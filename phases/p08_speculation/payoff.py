"""When guessing pays, predicted: the tokens of a step by arithmetic, its time by the roofline.

    python -m phases.p08_speculation.payoff --model llama-3.2-1b --bandwidth 4.3e12 --rate 780e12

prints the speed-up that is possible at best, by batch size and acceptance rate. It is a floor against a floor, so it
leaves out whatever both engines spend on anything but bytes and arithmetic.
"""

import argparse

from gradus.bench.predict.roofline import Machine, SpanShape, Widths, step_cost
from gradus.models.config import ModelConfig
from gradus.models.shapes import SHAPES

BFLOAT16 = Widths(weight=2, kv=2)
CONTEXT, DRAFTS, MOST = 512, 4, 16
RATES, BATCHES = (0.2, 0.4, 0.6, 0.8, 0.95), (1, 4, 16, 64, 256)


def expected_tokens(rate: float, drafts: int) -> float:
    """Tokens per step, if each draft is accepted with probability `rate`, given that all before it were.

    The i-th draft is accepted with probability rate^i, and one token comes for certain: 1 + a + a² + … + a^k.
    """
    return sum(rate**accepted for accepted in range(drafts + 1))


def step_seconds(config: ModelConfig, machine: Machine, batch: int, rows: int, context: int = CONTEXT) -> float:
    """The least time of a step in which `batch` sequences behind `context` positions have `rows` rows each."""
    spans = [SpanShape(context, rows, logits=rows)] * batch
    return step_cost(config, spans, BFLOAT16).seconds(machine)


def speed_up(
    config: ModelConfig,
    machine: Machine,
    batch: int,
    rate: float,
    drafts: int = DRAFTS,
    draft_model: ModelConfig | None = None,
) -> float:
    """Tokens per second with drafts, over those without. A draft model runs a step per draft; n-grams cost nothing."""
    plain = step_seconds(config, machine, batch, rows=1)
    verified = step_seconds(config, machine, batch, rows=1 + drafts)
    drafting = drafts * step_seconds(draft_model, machine, batch, rows=1) if draft_model else 0.0
    return expected_tokens(rate, drafts) * plain / (verified + drafting)


def best_drafts(
    config: ModelConfig, machine: Machine, batch: int, rate: float, draft_model: ModelConfig | None = None
) -> int:
    """Find the number of drafts with the most tokens per second; 0 if none is worth its row."""
    return max(range(MOST + 1), key=lambda drafts: speed_up(config, machine, batch, rate, drafts, draft_model))


def main() -> None:
    parser = argparse.ArgumentParser(description="The predicted speed-up of speculation, at best.")
    parser.add_argument("--model", default="llama-3.2-1b", choices=sorted(SHAPES))
    parser.add_argument("--draft", choices=sorted(SHAPES), help="a draft model; without one, drafts cost nothing")
    parser.add_argument("--bandwidth", type=float, default=4.3e12, help="bytes per second")
    parser.add_argument("--rate", type=float, default=780e12, help="floating-point operations per second")
    asked = parser.parse_args()
    config, machine = SHAPES[asked.model], Machine(asked.bandwidth, asked.rate)
    draft_model = SHAPES[asked.draft] if asked.draft else None
    print(f"{asked.model}, {CONTEXT} positions per sequence: predicted speed-up with {DRAFTS} drafts,")
    print(f"and the number of drafts, up to {MOST}, that predicts the most")
    print("accepted   batch" + "".join(f"{batch:12}" for batch in BATCHES))
    for rate in RATES:
        row = f"{rate:8.0%}" + " " * 8
        for batch in BATCHES:
            factor = speed_up(config, machine, batch, rate, DRAFTS, draft_model)
            row += f"{factor:8.2f}x{best_drafts(config, machine, batch, rate, draft_model):3}"
        print(row)


if __name__ == "__main__":
    main()
