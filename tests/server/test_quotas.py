"""Limits per key: a tenant that asks for too much is told when to come back, and its neighbors notice nothing."""

from functools import partial

import pytest

from gradus.errors import RequestError
from gradus.server.config import KeyLimits
from gradus.server.failures import QuotaExceeded
from gradus.server.http.keys import Key, digest_of, new_key, write_keys
from gradus.server.http.quotas import LONGEST_WAIT_S, Account
from gradus.server.measures import Tally
from tests.server.conftest import eventually, running
from tests.server.scripted import ScriptedCore


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def account(**limits):
    clock = Clock()
    return Account(KeyLimits(**limits), clock), clock


def entered(account, samples=1, generated=0, prompt=0):
    """Let a request in; its tally."""
    account.admit(samples)
    tally = Tally(samples, generated=generated, prompt_tokens=prompt)
    account.open(tally)
    return tally


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_samples_at_once_are_counted_until_their_request_ends():
    mine, _ = account(max_samples=3)
    first = entered(mine, 2)
    entered(mine)
    with pytest.raises(QuotaExceeded, match=r"may have 3 samples at once \(its max_samples\), and has 3") as caught:
        mine.admit(1)
    assert caught.value.retry_after == 1.0
    mine.close(first)
    mine.admit(2)


def test_more_samples_than_a_key_may_ever_have_is_a_mistake_and_not_a_matter_of_time():
    mine, _ = account(max_samples=3)
    with pytest.raises(RequestError, match="n must be at most 3 with this API key") as caught:
        mine.admit(4)
    assert caught.value.param == "n"


def test_only_samples_without_a_token_wait():
    mine, _ = account(max_waiting=1)
    tally = entered(mine)
    with pytest.raises(QuotaExceeded, match="max_waiting"):
        mine.admit(1)
    tally.generated = 1
    mine.admit(1)


def test_tokens_are_paid_for_afterwards_and_the_debt_runs_off():
    mine, clock = account(tokens_per_minute=60)
    mine.close(entered(mine, prompt=30, generated=20))
    mine.admit(1)  # 10 are left
    mine.close(entered(mine, prompt=10, generated=20))  # 20 of debt
    with pytest.raises(QuotaExceeded, match="has used its 60 tokens per minute; try again in 20 s") as caught:
        mine.admit(1)
    assert caught.value.retry_after == pytest.approx(20)
    clock.now += 19.9
    with pytest.raises(QuotaExceeded):
        mine.admit(1)
    clock.now += 0.2
    mine.admit(1)


def test_a_bucket_holds_no_more_than_a_minute():
    mine, clock = account(tokens_per_minute=60)
    clock.now += 3600
    mine.close(entered(mine, generated=61))
    with pytest.raises(QuotaExceeded):
        mine.admit(1)


def test_a_long_wait_is_said_in_a_length_that_clients_obey():
    mine, _ = account(tokens_per_minute=1)
    mine.close(entered(mine, generated=1000))
    with pytest.raises(QuotaExceeded) as caught:
        mine.admit(1)
    assert caught.value.retry_after == LONGEST_WAIT_S


def limited(account, rate):
    account.limits = KeyLimits(tokens_per_minute=rate)


def test_tokens_used_without_a_rate_limit_are_no_debt_once_there_is_one():
    mine, clock = account()
    mine.close(entered(mine, generated=2_500_000))
    running = entered(mine, prompt=1000, generated=1000)
    clock.now += 5
    limited(mine, 60)
    mine.admit(1)
    running.generated += 50  # these count
    mine.close(running)
    mine.admit(1)  # 10 are left
    mine.close(entered(mine, generated=20))
    with pytest.raises(QuotaExceeded, match="try again in 10 s"):
        mine.admit(1)


def test_a_rate_limit_that_is_taken_away_takes_its_debt_along():
    mine, _ = account(tokens_per_minute=60)
    mine.close(entered(mine, generated=1000))
    limited(mine, None)
    mine.admit(1)
    limited(mine, 60)
    mine.admit(1)


@pytest.mark.parametrize("rate", [1, 30, 60_000])
def test_another_rate_leaves_the_time_to_wait_as_it_is(rate):
    mine, clock = account(tokens_per_minute=60)
    mine.close(entered(mine, generated=90))  # 30 of debt
    clock.now += 10
    limited(mine, rate)
    limited(mine, rate)  # as every request does
    with pytest.raises(QuotaExceeded) as caught:
        mine.admit(1)
    assert caught.value.retry_after == pytest.approx(20)
    clock.now += 20.1
    mine.admit(1)


def test_a_key_without_limits_has_those_of_the_server():
    assert KeyLimits(max_samples=2).over(KeyLimits(9, 8, None)) == KeyLimits(2, 8, None)


# -- over real sockets -------------------------------------------------------------------------------------------------

ALICE, BOB = new_key(), new_key()


def served(tmp_path, core=ScriptedCore, limits=None, **settings):
    keys = {"alice": Key("alice", digest_of(ALICE), limits=limits or KeyLimits()), "bob": Key("bob", digest_of(BOB))}
    write_keys(tmp_path / "keys.yaml", keys)
    return running(core, api_keys=str(tmp_path / "keys.yaml"), **settings)


def asked(server, key=ALICE, path="/generate", **body):
    return server.http.post(path, json={"prompt": "a"} | body, headers={"x-api-key": key})


def test_a_key_in_debt_gets_429_with_the_time_to_wait_and_others_are_served(tmp_path):
    with served(tmp_path, limits=KeyLimits(tokens_per_minute=60)) as server:
        assert asked(server, max_tokens=89).status_code == 200  # 90 tokens: 30 of debt
        refused = asked(server, max_tokens=1)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_exceeded"
        assert int(refused.headers["retry-after"]) == 30
        assert 29_000 < int(refused.headers["retry-after-ms"]) <= 30_000
        assert asked(server, BOB, max_tokens=89).status_code == 200


def test_a_client_that_leaves_pays_for_what_it_has_got(tmp_path):
    limits = KeyLimits(tokens_per_minute=60)
    with served(tmp_path, partial(ScriptedCore, step_s=0.002), limits) as server:
        body = b'{"prompt": "a", "max_tokens": 4000, "stream": true}'
        connection = server.send(body, headers=[f"x-api-key: {ALICE}"])
        assert eventually(lambda: server.engine.totals.generated_tokens > 100)
        server.leave(connection, reset=True)
        assert eventually(server.idle)
        assert eventually(lambda: asked(server, max_tokens=1).status_code == 429)


@pytest.mark.parametrize("stream", [False, True])
def test_samples_at_once_are_limited_and_given_back(tmp_path, stream):
    with served(tmp_path, partial(ScriptedCore, step_s=0.01), KeyLimits(max_samples=2)) as server:
        body = b'{"prompt": "a", "max_tokens": 4000, "n": 2, "stream": %s}' % (b"true" if stream else b"false")
        connection = server.send(body, headers=[f"x-api-key: {ALICE}"])
        assert eventually(lambda: server.engine.running)
        assert asked(server, max_tokens=1).status_code == 429
        assert asked(server, BOB, max_tokens=1).status_code == 200
        assert asked(server, max_tokens=1, n=3).status_code == 400
        server.leave(connection, reset=True)
        assert eventually(lambda: asked(server, max_tokens=1).status_code == 200)


def test_a_refused_request_costs_the_key_nothing(tmp_path):
    with served(tmp_path, limits=KeyLimits(max_samples=1)) as server:
        for body in ({"max_tokens": 0}, {"prompt": [9999]}, {"prompt": [1] * 5000, "max_tokens": 1}):
            assert asked(server, **body).status_code == 400
        assert asked(server, max_tokens=1).status_code == 200


def test_the_servers_limits_hold_for_keys_without_their_own(tmp_path):
    with served(tmp_path, key_tokens_per_minute=60) as server:
        assert asked(server, max_tokens=99).status_code == 200
        assert asked(server, max_tokens=1).status_code == 429


def test_errors_that_would_only_repeat_themselves_say_so(serving):
    """SDKs repeat every 5xx twice: a request that ends the same way each time would cost three times as much."""
    server = serving(partial(ScriptedCore, step_s=0.02, poison=13, slots=1), max_waiting=1)
    late = server.generate(prompt="a", max_tokens=4000, timeout=0.05)
    assert late.status_code == 504 and late.headers["x-should-retry"] == "false"
    fault = server.generate(prompt=[13], max_tokens=4)
    assert fault.status_code == 500 and fault.headers["x-should-retry"] == "false"
    first = server.send(b'{"prompt": "a", "max_tokens": 4000}')
    assert eventually(lambda: server.engine.running)
    second = server.send(b'{"prompt": "a", "max_tokens": 4000}')
    assert eventually(lambda: server.stats()["waiting"] == 1)
    full = server.generate(prompt="a", max_tokens=1)
    assert full.status_code == 503 and "x-should-retry" not in full.headers
    assert int(full.headers["retry-after-ms"]) == 1000 * int(full.headers["retry-after"])
    first.close()
    second.close()
