"""Percentiles and medians without numpy, so that a report can be made wherever Python runs."""

import math
from collections.abc import Iterable, Sequence

QUANTILES = (0, 50, 90, 95, 99, 100)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` percent lie, by linear interpolation between ranks: numpy's default.

    Raises ValueError for no values, or a share outside [0, 100].
    """
    if not values or not 0 <= share <= 100:
        raise ValueError(f"percentile {share} of {len(values)} values")
    ordered = sorted(values)
    rank = (len(ordered) - 1) * share / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def median(values: Sequence[float]) -> float:
    return percentile(values, 50)


def distribution(values: Iterable[float], digits: int = 4) -> dict[str, float]:
    """Summarize values: quantiles as {"p0": …, "p50": …, "p100": …}, and their mean.

    A single value has only a median; no values give {}.
    """
    values = list(values)
    if not values:
        return {}
    if len(values) == 1:
        return {"p50": significant(values[0], digits)}
    kept = {f"p{share}": significant(percentile(values, share), digits) for share in QUANTILES}
    return kept | {"mean": significant(sum(values) / len(values), digits)}


def significant(value: float, digits: int = 4) -> float:
    """Round to `digits` significant digits: no timer is more precise, and files stay small."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def wilson(hits: int, trials: int, deviations: float = 1.96) -> tuple[float, float]:
    """The interval of a share, by its score (Wilson 1927): unlike the normal one, it is right near 0 and 1 too.

    deviations: 1.96 for 95 %. Raises ValueError without trials.
    """
    if not 0 <= hits <= trials or not trials:
        raise ValueError(f"{hits} hits of {trials} trials")
    share, each = hits / trials, deviations**2 / trials
    middle = share + each / 2
    spread = deviations * math.sqrt(share * (1 - share) / trials + each / (4 * trials))
    return max(0.0, (middle - spread) / (1 + each)), min(1.0, (middle + spread) / (1 + each))


def paired(lost: int, gained: int, trials: int, deviations: float = 1.96) -> tuple[float, float]:
    """The interval of (lost - gained) / trials, where each trial was made twice (Agresti and Min 2005).

    lost: trials that succeeded only the first time; gained: only the second time. Half a trial is added to each of the
    four outcomes, so that a few trials that agree do not look certain. Trials count as independent.
    """
    lost_share, gained_share = ((count + 1 / 2) / (trials + 2) for count in (lost, gained))
    middle = lost_share - gained_share
    spread = deviations * math.sqrt((lost_share + gained_share - middle**2) / (trials + 2))
    return middle - spread, middle + spread
