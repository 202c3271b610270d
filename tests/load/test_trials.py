"""Loads on one server: settled between probes, ended early, refused where the generator is late; and on a real one."""

import math

import pytest

from gradus.errors import ConfigError
from gradus.load.asking.clients import Run
from gradus.load.asking.routes import COMPLETIONS, GENERATE, Writing
from gradus.load.asking.target import Target
from gradus.load.figure import curve
from gradus.load.jobs.lengths import Lengths
from gradus.load.jobs.mix import Mix
from gradus.load.objective import Objective
from gradus.load.report import knee_line, result
from gradus.load.search import Search
from gradus.load.settings import LoadSettings
from gradus.load.trials import Trial, Trials, jobs_of, loads, opened
from tests.load.server import paced, scripted

SHORT = Mix(Lengths(4, 6), Lengths(2, 3))


def trials(server, objective=None):
    return Trials(server.target, Writing(COMPLETIONS, "m"), 1000, objective=objective or Objective(ttft=5.0))


def test_a_probe_counts_what_comes_after_its_warm_up_and_repeats_no_prompt():
    with scripted(paced(0.01, 0.0)) as server:
        asked = trials(server)
        search = Search(seconds=0.5, requests=10, warmup=0.2)
        one, two = (asked.probe(SHORT, 40.0, search, number) for number in (0, 1))
    assert one.good == 1.0 and 12 <= len(one.answers) <= 28 and len(one.run.answers) == 28
    assert not one.run.stopped
    assert not {job.prompt for job in one.jobs} & {job.prompt for job in two.jobs}


def test_the_search_stops_where_latency_grows_over_the_objective(monkeypatch):
    """A server that serves one request at a time, for 20 ms each: 50 per second at most. On a busy machine the clients
    are late, which is not the question here."""
    import asyncio

    monkeypatch.setattr(Run, "late_s", 0.0)
    lock = asyncio.Lock()
    say = paced(0.02, 0.0)

    async def says(body, number, write):
        async with lock:
            await say(body, number, write)

    with scripted(says) as server:
        found = trials(server, Objective(ttft=0.25)).highest(
            SHORT, 8.0, Search(share=0.9, seconds=1.2, requests=10, warmup=0.1, precision=0.6), lambda trial: None
        )
    assert found.best <= 55 and found.failed > found.best and found.unsent is None and len(found.passed) >= 2


def test_a_late_generator_ends_a_search_and_is_no_failure_of_the_server(monkeypatch):
    search = Search(seconds=0.2, requests=3, warmup=0.0)
    with scripted(paced(0.0, 0.0)) as server:
        late = iter([0.0, 0.6, 0.6])
        monkeypatch.setattr(Run, "late_s", property(lambda run: late_s))
        seen = []
        late_s = 0.0

        def each(trial):
            nonlocal late_s
            late_s = next(late)
            seen.append(trial.rate)

        found = trials(server).highest(SHORT, 20.0, search, each)
        assert (found.best, found.unsent, found.failed, found.whole) == (20.0, 40.0, None, False) and seen == [
            20.0,
            40.0,
        ]
        with pytest.raises(ConfigError, match="cannot send 20 requests/s in time"):
            trials(server).highest(SHORT, 20.0, search, each)


@pytest.mark.parametrize(("late_s", "ttft", "users", "late"), [
    (0.05, None, None, False), (0.11, None, None, True), (0.021, 0.2, None, True), (0.019, 0.2, None, False),
    (0.5, 0.2, 4, False),
])  # fmt: skip
def test_lateness_is_judged_by_the_objective_and_only_of_an_open_load(monkeypatch, late_s, ttft, users, late):
    monkeypatch.setattr(Run, "late_s", property(lambda run: late_s))
    assert Trial(1.0, users, [], Run([], 0.0, 0, False, []), [], Objective(ttft=ttft)).late is late


def test_a_server_settles_when_a_short_request_is_answered_at_once():
    import asyncio

    async def says(body, number, write):
        await asyncio.sleep(0.4 if number < 2 else 0.0)
        await paced(0.0, 0.0)(body, number, write)

    with scripted(says) as server:
        trials(server, Objective(ttft=0.5)).settle()
        assert 3 <= len(server.bodies) < 20


def test_several_loads_repeat_no_prompt_and_show_where_latency_turns_up():
    settings = LoadSettings(requests=8, max_concurrency="1,2,4,8", prompt_tokens="5", max_tokens="3")
    with scripted(paced(0.01, 0.0)) as server:
        found = list(loads(settings, trials(server)))
    assert [trial.users for trial in found] == [1, 2, 4, 8] and [len(trial.jobs) for trial in found] == [8, 8, 16, 32]
    prompts = [job.prompt for trial in found for job in trial.jobs]
    assert len(set(prompts)) == len(prompts)
    records = [trial.record([50.0, 99.0]) for trial in found]
    for record, mean in zip(records, (10, 10, 10, 100), strict=True):
        record["e2el_ms"]["mean"] = mean
    assert "up to 4 users" in knee_line(records, settings)
    assert result(settings, records, None, "m")["asked"]["max_concurrency"] == "1,2,4,8"


def test_a_figure_shows_every_load_and_needs_no_latency():
    load = {"rate": None, "ttft_ms": {"p99": 30.0}, "tpot_ms": {"p99": 4.0}, "output_tok_s": 100.0}
    drawn = curve(
        [load | {"users": users, "output_tok_s": 100.0 * users} for users in (1, 2, 4)], "A title & more", "users"
    )
    assert drawn.count("<circle") == 9 and "A title &amp; more" in drawn and "400" in drawn and drawn.startswith("<svg")
    empty = {"users": 3, "ttft_ms": {}, "tpot_ms": {}, "output_tok_s": 0.0}
    assert curve([empty], "one that served nothing", "users").count("<circle") == 1


def test_jobs_follow_the_settings():
    at_once = jobs_of(LoadSettings(requests=4, mixed=True, max_tokens="10"), 1000, math.inf, 4)
    assert [job.output for job in at_once] == [3, 5, 8, 10] and {job.at for job in at_once} == {0.0}
    bursts = jobs_of(LoadSettings(burst_size=2, burst_every=0.5), 1000, math.inf, 5)
    assert [job.at for job in bursts] == [0.0, 0.0, 0.5, 0.5, 1.0]
    ramp = LoadSettings(ramp_up_strategy="linear", ramp_up_start_rps=10.0, ramp_up_end_rps=10.0)
    assert jobs_of(ramp, 1000, math.inf, 300)[-1].at == pytest.approx(30.0, rel=0.25)
    shared = jobs_of(LoadSettings(shared=5, prompt_tokens="20"), 1000, math.inf, 3)
    assert len({job.prompt[:5] for job in shared}) == 1 and len({job.prompt[:6] for job in shared}) == 3
    *_, late = jobs_of(LoadSettings(long=70, requests=2), 1000, math.inf, 2)
    assert late.late and len(late.prompt) == 70


def test_a_real_server_answers_every_route():
    """gradus serve with a tiny random model, at a rate, on two routes, and a text prompt."""
    from gradus import LLM
    from tests.server.conftest import running

    def load():
        return LLM("random:tiny-llama", device="cpu", dtype="float32", context_length=128)

    with running(load) as server:
        for path, text in ((GENERATE, False), (COMPLETIONS, False), (COMPLETIONS, True)):
            settings = LoadSettings(endpoint=path, text=text, requests=12, request_rate="40", prompt_tokens="5-20",
                                    max_tokens="3-8", goodput=("ttft:30000",))  # fmt: skip
            target = Target.at(server.url)
            (trial,) = loads(settings, opened(settings, target, target.ready(), None))
            assert trial.good == 1.0, {answer.detail for answer in trial.answers}
            assert [answer.tokens for answer in trial.answers] == [job.output for job in trial.jobs]
            assert text or [answer.prompt_tokens for answer in trial.answers] == [len(job.prompt) for job in trial.jobs]


def test_clients_read_the_key_that_servers_read():
    from gradus.load.asking import target
    from gradus.server.http import keys

    assert target.KEY == keys.VARIABLE
