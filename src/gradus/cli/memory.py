"""An engine's memory plan, for people and for programs."""

from dataclasses import asdict
from typing import Any

from gradus.cache.capacity import sessions_in_words
from gradus.execution.memory.device_memory import readable
from gradus.execution.memory.plan import MemoryPlan


def as_dict(plan: MemoryPlan) -> dict[str, Any]:
    """Return the plan as a dictionary, for --json."""
    numbers = ("cache_bytes_per_sequence", "sequences_that_fit", "sequences", "left_bytes", "fits")
    derived = (*numbers, "sequences_by_length")
    return asdict(plan) | {name: getattr(plan, name) for name in derived}


def render(plan: MemoryPlan) -> str:
    """Render the plan for people: one fact per line, the conclusion last."""
    total, per_token = readable(plan.beside_cache + plan.cache_bytes), readable(plan.cache_bytes_per_token)
    verdict = f"which fits; {readable(plan.left_bytes)} more could be used" if plan.fits else "which does NOT fit"
    lines = [
        ("device", f"{plan.device}, {plan.dtype}"),
        ("free now", _free(plan)),
        ("weights", readable(plan.weight_bytes)),
        *(
            [("in the file", f"{readable(plan.mapped_bytes)} of experts, read as tokens choose them")]
            if plan.mapped_bytes
            else ()
        ),
        *(_step_lines(plan) if plan.step_tokens else ()),
        ("cache", f"{readable(plan.cache_bytes)}, {plan.cache_dtype}, {per_token} per token"),
        *_page_lines(plan),
        ("sequences that fit", f"{plan.sequences_that_fit} of full length (context {plan.context_length} tokens)"),
        ("runs", f"up to {plan.max_sequences} sequences at a time"),
        *(("note", note) for note in plan.notes),
        ("in all", f"{total}, {verdict}"),
    ]
    return "\n".join(f"{name:<20}{value}" for name, value in lines)


def _free(plan: MemoryPlan) -> str:
    part = f"{readable(plan.usable_bytes)} may be taken (memory_fraction {plan.memory_fraction:g})"
    whole = "" if plan.total_bytes is None else f" of {readable(plan.total_bytes)}"
    return f"{readable(plan.free_bytes)}{whole}, of which {part}"


def _step_lines(plan: MemoryPlan) -> list[tuple[str, str]]:
    return [
        ("largest step", f"{readable(plan.step_bytes)}, estimated for {plan.step_tokens} tokens"),
        ("CUDA graphs", f"{readable(plan.graph_bytes)}, estimated" if plan.graph_bytes else "none"),
        ("tables", f"{readable(plan.table_bytes)}: rows of sequences, host_cache's staging, 8 bits that are widened"),
    ]


def _page_lines(plan: MemoryPlan) -> list[tuple[str, str]]:
    if plan.pages is None:
        return []
    pages = plan.pages
    return [
        ("pages", f"{pages.count} of {pages.page_size} tokens; {pages.positions} tokens in all layers"),
        ("holds at once", sessions_in_words(plan.sequences_by_length, plan.max_sequences)),
    ]
