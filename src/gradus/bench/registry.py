"""Every benchmark and every contender by name: its policy for predictions, and its title.

`declare` says what a benchmark is. Those of the phases are found at run time. No torch here.
"""

from gradus import phases
from gradus.bench.declare import suites
from gradus.bench.declare.declaration import (
    GGUF_FORMATS,
    LLAMA_CPP,
    PEERS,
    SWITCHES,
    YOURS,
    Benchmark,
    is_peer,
    quantized,
    switched,
)
from gradus.bench.predict.prediction import Policy, continuous, reusing
from gradus.bench.studies import beside, quality_report, sampling_report, speculation_report
from gradus.config.options import FINAL
from gradus.errors import ConfigError

TITLES = {
    FINAL: "final engine",
    "transformers": "transformers generate",
    "transformers-batch": "transformers generate_batch",
    beside.THEIRS: "vLLM",
    beside.at_budget(8192): "vLLM, 8,192 tokens per step",
    suites.LADDER: "The ladder",
    suites.ABLATION: "The final engine, one switch off at a time",
    suites.MATRIX: "Every kind of workload",
    suites.CPU_DECODE: "Decoding on a processor",
    beside.NAME: "Beside vLLM",
    sampling_report.NAME: "What sampling parameters cost",
    quality_report.NAME: "What quantization does to predictions",
    speculation_report.NAME: "What speculation brings",
}


def names() -> list[str]:
    """All that `gradus bench` can run: the phases with a benchmark.py, and the suites that span phases."""
    return [*_phases(), *suites.SUITES]


def reported() -> list[str]:
    """All benchmarks that have reports."""
    return [*names(), beside.NAME]


def load(name: str) -> Benchmark:
    """The benchmark of a phase ("p01") or of another name. Raises ConfigError for an unknown name."""
    if name in suites.SUITES:
        return suites.SUITES[name]()
    if name == beside.NAME:
        return beside.BENCHMARK
    found = _phases()
    if name not in found:
        raise ConfigError(f"benchmark must be one of {', '.join([*names(), 'all'])}, got {name!r}")
    return found[name].module("benchmark").BENCHMARK


def step_of(contender: str) -> str:
    """The sentence on what a contender adds on the ladder, with fields for its numbers; "" if it is no rung."""
    name, _ = quantized(contender)
    if name == FINAL:
        return suites.STEP_OF_FINAL
    phase = _phases().get(name)
    return suites.STEPS_OF_PEERS.get(name, "") if phase is None else phase.module("benchmark").BENCHMARK.step


def policy_of(contender: str) -> Policy | None:
    """The policy that predicts a contender."""
    if is_peer(contender):
        return PEERS[quantized(contender)[0]]
    engine, off = switched(contender)
    if engine == FINAL:
        return continuous if "prefix_cache" in off else reusing
    return load(engine).policy


def title_of(contender: str) -> str:
    """The title of a contender or a benchmark: "p01 KV cache", "final engine, int8", "The ladder"."""
    named = TITLES | {phase.name: f"{phase.name} {phase.title}" for phase in phases.available()}
    if contender in named:
        return named[contender]
    if contender.startswith(YOURS):
        return contender
    whole, scheme = quantized(contender)
    if whole == LLAMA_CPP and scheme in GGUF_FORMATS:
        return f"{whole} {GGUF_FORMATS[scheme]}"
    if scheme is not None:
        return f"{title_of(whole)}, {scheme}"
    engine, *off = contender.split("-")
    missing = [SWITCHES[switch] for switch in off if switch in SWITCHES]
    return f"{engine} without {' and '.join(missing)}" if missing else contender


def _phases() -> dict[str, phases.PhaseInfo]:
    """The phases with a benchmark.py, by name, in course order."""
    return {phase.name: phase for phase in phases.available() if phase.has("benchmark")}
