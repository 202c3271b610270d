"""Every setting of `gradus load`. Where vLLM's `bench serve` has the same one, its name is accepted too."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from gradus.config.description import check, setting
from gradus.errors import ConfigError, RequestError
from gradus.load.asking.routes import BACKENDS
from gradus.load.asking.target import KEY
from gradus.load.jobs.lengths import Lengths
from gradus.load.jobs.mix import MIXES, Mix
from gradus.load.measurements import METRICS
from gradus.load.objective import Objective
from gradus.load.search import Search

MOST_REQUESTS, MOST_TOKENS, MOST_USERS, MOST_RATE = 100_000, 1_000_000, 4096, 10_000.0
SEARCH_WARMUP_S = 2.0
FROM_PROMPT = ("prompt_tokens", "max_tokens", "shared", "random_prefix_len", "mixed", "long")

_WHAT, _WHEN, _WHERE, _GOAL, _OUT = "What is asked", "When", "Server", "Objective", "Results"


@dataclass(frozen=True)
class LoadSettings:
    """Raises ConfigError or RequestError, in one line, for values that make no load."""

    requests: int = setting(
        8, "Number of requests, for each rate or number of users.", flags=("--num-prompts",), least=1,
        most=MOST_REQUESTS, panel=_WHAT,
    )  # fmt: skip
    prompt_tokens: str = setting(
        "64", "Tokens of each prompt: 64; a range, 16-128; or log-normal with a median and a factor, 16-3000~200x3.",
        flags=("--random-input-len",), metavar="LENGTHS", panel=_WHAT,
    )  # fmt: skip
    max_tokens: str = setting(
        "32", "Tokens of each answer, likewise.", flags=("--random-output-len",), metavar="LENGTHS", panel=_WHAT
    )  # fmt: skip
    random_range_ratio: float = setting(
        0.0, "Lengths vary by this share to both sides; 0.2 makes 80 to 120 of 100.", least=0, most=1, panel=_WHAT
    )
    shared: int = setting(
        0, "Number of tokens at the beginning that all prompts share.", least=0, most=MOST_TOKENS, panel=_WHAT
    )
    random_prefix_len: int = setting(
        0, "The same, in addition to the tokens of the prompt.", least=0, most=MOST_TOKENS, panel=_WHAT
    )
    mixed: bool = setting(
        False, "Answers of all lengths, from a few tokens in the first request to --max-tokens.", panel=_WHAT
    )
    long: int = setting(
        0, "Send one more request, with this many prompt tokens, once all others have a token.", least=0,
        most=MOST_TOKENS, panel=_WHAT,
    )  # fmt: skip
    mix: str | None = setting(
        None, "Lengths and shared beginnings by name. chat: 16 to 3,000 tokens in, 8 to 800 out, 40 % behind one of "
        "four system prompts.", unset="none", choices=tuple(MIXES), panel=_WHAT,
    )  # fmt: skip
    trace: str | None = setting(
        None, "Replay a trace: a JSON object per line, with at or timestamp, prompt or input_length, output_length.",
        unset="none", metavar="FILE", panel=_WHAT,
    )  # fmt: skip
    trace_speed: float = setting(1.0, "Replay the trace this many times as fast.", above=0, most=1000, panel=_WHAT)
    seed: int = setting(0, "The same seed gives the same requests at the same times.", panel=_WHAT)
    temperature: float = setting(0.0, "The temperature of all requests.", least=0, most=2, panel=_WHAT)
    stop_at_eos: bool = setting(
        False,
        "Let answers end where the model ends them; otherwise they have exactly the length asked for.",
        panel=_WHAT,
    )
    text: bool = setting(
        False, "Send prompts as text of about as many tokens, also where the server takes token ids.", panel=_WHAT
    )
    vocab_size: int | None = setting(
        None, "Prompts are drawn from the token ids below this.", unset="the server's, or 30,000", least=2,
        most=10_000_000, panel=_WHAT,
    )  # fmt: skip

    request_rate: str = setting(
        "inf", "Requests per second, whatever the server does; inf: all at once; 10,20,40: one load after the other.",
        metavar="RATES", panel=_WHEN,
    )  # fmt: skip
    burstiness: float = setting(
        1.0,
        "The shape of the gaps between requests: 1 is Poisson, less comes in bunches.",
        above=0,
        most=1000,
        panel=_WHEN,
    )
    max_concurrency: str | None = setting(
        None, "Users who each send one request after the other; 1,2,4: one load after the other.",
        unset="no limit", flags=("--concurrency", "--users"), metavar="USERS", panel=_WHEN,
    )  # fmt: skip
    ramp_up_strategy: str | None = setting(
        None,
        "Let the rate grow between the two that follow.",
        unset="none",
        choices=("linear", "exponential"),
        panel=_WHEN,
    )
    ramp_up_start_rps: float = setting(1.0, "The first rate.", above=0, most=MOST_RATE, panel=_WHEN)
    ramp_up_end_rps: float = setting(10.0, "The last rate.", above=0, most=MOST_RATE, panel=_WHEN)
    burst_size: int | None = setting(
        None, "Send so many at a time.", unset="no bursts", least=1, most=MOST_REQUESTS, panel=_WHEN
    )
    burst_every: float = setting(1.0, "The time between two bursts.", above=0, most=3600, unit="seconds", panel=_WHEN)
    warmup: float = setting(
        0.0,
        "Requests that are due this early are sent and not counted; 2 for --find-rate if it is 0.",
        least=0,
        most=3600,
        unit="seconds",
        panel=_WHEN,
    )
    request_timeout: float = setting(
        600.0, "The longest wait for one answer.", above=0, most=86400, unit="seconds", panel=_WHEN
    )

    base_url: str = setting("http://127.0.0.1:8000", "The server's address.", flags=("--url",), panel=_WHERE)
    endpoint: str | None = setting(
        None, "/generate, /v1/completions or /v1/chat/completions.", unset="the backend's", panel=_WHERE
    )
    backend: str | None = setting(
        None, "The server's kind.", unset="gradus, or openai where another server answers", choices=tuple(BACKENDS),
        panel=_WHERE,
    )  # fmt: skip
    model: str | None = setting(None, "The model's name.", unset="the first that the server lists", panel=_WHERE)
    key_variable: str = setting(KEY, "The environment variable that holds the API key.", metavar="NAME", panel=_WHERE)
    yes_this_server_is_mine: bool = setting(
        False, "Load a server on another machine. Only ever say so of your own.", panel=_WHERE
    )

    goodput: tuple[str, ...] = setting(
        (), "What an answer has to reach to count, in ms: ttft:200 tpot:20 e2el:5000.", unset="nothing", panel=_GOAL
    )
    share: float = setting(0.99, "The share of requests that has to reach it.", above=0, most=1, panel=_GOAL)
    find_rate: bool = setting(
        False, "Find the highest rate at which that share reaches it, from the first of --request-rate on.", panel=_GOAL
    )
    precision: float = setting(0.05, "How near that rate has to be found.", above=0, most=1, panel=_GOAL)
    probe_seconds: float = setting(
        10.0, "How long requests are sent at each rate, at least.", above=0, most=3600, unit="seconds", panel=_GOAL
    )
    probe_requests: int = setting(
        100, "How many are sent at each rate, at least.", least=1, most=MOST_REQUESTS, panel=_GOAL
    )
    budget: float = setting(300.0, "The time for the whole search.", above=0, most=86400, unit="seconds", panel=_GOAL)

    percentile_metrics: str = setting(",".join(METRICS), "The latencies to show.", metavar="NAMES", panel=_OUT)
    metric_percentiles: str = setting("50,90,99", "The percentiles to show.", metavar="NUMBERS", panel=_OUT)
    save_result: bool = setting(False, "Write the numbers as JSON, to load.json unless it is named.", panel=_OUT)
    result_filename: str | None = setting(
        None, "Write the numbers to this file.", unset="none", metavar="FILE", panel=_OUT
    )
    plot: str | None = setting(
        None, "Draw latencies and rates of several loads, as SVG.", unset="none", metavar="FILE", panel=_OUT
    )

    def __post_init__(self) -> None:
        check(self)
        self.draws(), self.users, self.rates, self.objective, self.percentiles, self.metrics
        self._check_pairs()

    def _check_pairs(self) -> None:
        several = len(self.rates) > 1 or len(self.users) > 1
        for wrong, why in (
            (self.find_rate and not self.objective, "find_rate needs an objective: add --goodput ttft:200 tpot:20"),
            (self.find_rate and math.isinf(self.rates[0]), "find_rate needs a first rate: add --request-rate 4"),
            (self.find_rate and self.users != [None], "find_rate is of an open load: leave --max-concurrency out"),
            (self.find_rate and several, "find_rate begins with one rate, and finds the others"),
            (len(self.rates) > 1 and len(self.users) > 1, "several rates, and several numbers of users: choose one"),
            (self.trace and several, "trace has its own times: it is replayed once"),
            (self.trace and self.find_rate, "find_rate draws its requests: leave --trace out"),
            (self.long and (several or self.find_rate), "long is for one load, not for several"),
            (self.plot and not several, "plot needs several loads: --request-rate 1,2,4 or --concurrency 1,2,4"),
            (self.ramp_up_strategy and self.burst_size, "ramp_up_strategy and burst_size: choose one of them"),
        ):  # fmt: skip
            if wrong:
                raise ConfigError(why)
        given = [name for name in FROM_PROMPT if getattr(self, name) != _DEFAULTS[name]]
        if given and (self.mix or self.trace):
            raise ConfigError(
                f"{given[0]} and {'mix' if self.mix else 'trace'} both say what is asked: choose one of them"
            )

    def draws(self) -> Mix:
        """The lengths and shared beginnings that requests are drawn from, unless a trace has them."""
        if self.mix:
            return MIXES[self.mix]
        prompt = self._lengths("prompt_tokens", self.prompt_tokens)
        output = self._lengths("max_tokens", self.max_tokens)
        if self.shared > prompt.low:
            raise RequestError.of("shared", f"at most the prompt's {prompt.low} tokens", self.shared)
        if self.shared and self.random_prefix_len:
            raise ConfigError("shared and random_prefix_len both say what prompts share: choose one of them")
        beginning = self.shared or self.random_prefix_len
        return Mix(prompt, output, 1 if beginning else 0, 1.0, beginning, within=bool(self.shared))

    def _lengths(self, option: str, text: str) -> Lengths:
        lengths = Lengths.parse(text, option)
        if lengths.high > MOST_TOKENS:
            raise RequestError.of(option, f"at most {MOST_TOKENS}", text, bare=True)
        if self.random_range_ratio and lengths.low == lengths.high:
            return Lengths.around(lengths.low, self.random_range_ratio)
        return lengths

    @property
    def rates(self) -> list[float]:
        return [_number(text, "request_rate", MOST_RATE) for text in _listed(self.request_rate)]

    @property
    def users(self) -> list[int | None]:
        if self.max_concurrency is None:
            return [None]
        texts = _listed(self.max_concurrency)
        if not all(text.isdigit() and 1 <= int(text) <= MOST_USERS for text in texts):
            raise RequestError.of("max_concurrency", f"whole numbers from 1 to {MOST_USERS}", self.max_concurrency)
        return [int(text) for text in texts]

    @property
    def objective(self) -> Objective:
        return Objective.parse(self.goodput)

    @property
    def search(self) -> Search:
        warmup = self.warmup or SEARCH_WARMUP_S
        seconds, requests = self.probe_seconds, self.probe_requests
        return Search(self.share, seconds, requests, warmup, precision=self.precision, budget=self.budget)

    @property
    def percentiles(self) -> list[float]:
        return [_number(text, "metric_percentiles", 100.0) for text in _listed(self.metric_percentiles)]

    @property
    def metrics(self) -> Sequence[str]:
        names = _listed(self.percentile_metrics)
        if not set(names) <= METRICS.keys():
            raise RequestError.of("percentile_metrics", f"some of {', '.join(METRICS)}", self.percentile_metrics)
        return names

    @property
    def all_at_once(self) -> bool:
        """Whether nothing spreads the requests: no rate, no users, no trace."""
        plain = self.rates == [math.inf] and self.users == [None]
        return plain and not (self.trace or self.ramp_up_strategy or self.burst_size)


_DEFAULTS = {one.name: one.default for one in fields(LoadSettings)}


def _listed(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",")]


def _number(text: str, option: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (0 < value <= most or (value == math.inf and option == "request_rate")):
        raise RequestError.of(option, f"numbers above 0 and at most {most:g}", text, bare=True)
    return value
