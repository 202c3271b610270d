"""GPUs by name: memory, bandwidth and rates, so that a server can be sized for a card that is not here.

Published rates are ceilings that no program reaches. The repository measured two cards (H200, H100): reading memory
reached 0.88 and 0.91 of the data sheet, large products in bfloat16 0.79 of it on both. The other cards are taken to
reach READ and PRODUCT as well: an assumption, not a measurement.

Sources: NVIDIA's data sheets of the H200, H100 SXM, A100 80GB SXM, L40S and L4 (dense rates, without sparsity), and the
architecture papers of Ada (RTX 4090) and Blackwell (RTX 5090), bfloat16 with sums in float32. Memory is what
`nvidia-smi` shows as total. Multiprocessors and capabilities: the CUDA documentation.
"""

from dataclasses import dataclass

from gradus.bench.predict.roofline import Machine
from gradus.device.capability import Assumed, Capability
from gradus.errors import ConfigError

READ, PRODUCT = 0.88, 0.79
MIB = 1 << 20
RESERVED = 600 * MIB  # by the driver, within nvidia-smi's total: 615 MiB on an H200, 458 on an H100
CONTEXT = 530 * MIB  # of the rest, by CUDA for a process, as seen on an H200


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU.

    title: as CUDA names it. shown: bytes of memory, as nvidia-smi shows them. bandwidth, rate: published, bytes and
    bfloat16 operations per second.
    measured: the rates that the repository's records have of it; None without any.
    """

    name: str
    title: str
    shown: int
    bandwidth: float
    rate: float
    capability: Capability
    multiprocessors: int
    measured: Machine | None = None

    @property
    def machine(self) -> Machine:
        """The rates that reading and products reach."""
        return self.measured or Machine(self.bandwidth * READ, self.rate * PRODUCT)

    @property
    def memory(self) -> int:
        """Bytes that CUDA counts."""
        return self.shown - RESERVED

    @property
    def free(self) -> int:
        """Bytes that an otherwise empty card has for one process."""
        return self.memory - CONTEXT

    @property
    def assumed(self) -> Assumed:
        return Assumed(self.title, self.capability, self.multiprocessors)


CARDS = {
    card.name: card
    for card in (
        Card("h200", "NVIDIA H200", 143_771 * MIB, 4.8e12, 989e12, Capability(9, 0), 132, Machine(4.22e12, 777e12)),
        Card(
            "h100",
            "NVIDIA H100 80GB HBM3",
            81_559 * MIB,
            3.35e12,
            989e12,
            Capability(9, 0),
            132,
            Machine(3.03e12, 782e12),
        ),
        Card("a100", "NVIDIA A100-SXM4-80GB", 81_920 * MIB, 2.039e12, 312e12, Capability(8, 0), 108),
        Card("l40s", "NVIDIA L40S", 46_068 * MIB, 864e9, 362e12, Capability(8, 9), 142),
        Card("l4", "NVIDIA L4", 23_034 * MIB, 300e9, 121e12, Capability(8, 9), 58),
        Card("rtx5090", "NVIDIA GeForce RTX 5090", 32_607 * MIB, 1.792e12, 209.5e12, Capability(12, 0), 170),
        Card("rtx4090", "NVIDIA GeForce RTX 4090", 24_564 * MIB, 1.008e12, 165.2e12, Capability(8, 9), 128),
    )
}


def card(name: str) -> Card:
    """Find a card: "H200", "rtx 4090" and "rtx-4090" are names. Raises ConfigError."""
    found = CARDS.get("".join(char for char in name.lower() if char.isalnum()))
    if found is None:
        raise ConfigError(f"--card takes {', '.join(CARDS)}, got {name[:40]!r}; without it, the device here is meant")
    return found


def card_of(title: str) -> Card | None:
    """Find a card by CUDA's name for it."""
    return next((each for each in CARDS.values() if each.title == title), None)
