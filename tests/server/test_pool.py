"""Several models behind one port: which are loaded, whose turn it is, and that all requests are answered.

The pool is tried against a naive model and with random work; the server with scripted engines, and with tiny models in
processes of their own.
"""

import asyncio
import random
import threading
from collections import OrderedDict

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gradus.errors import ConfigError
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.engine.loading import memory_fraction
from gradus.server.engine.messages import Failure, Loaded, LoadFailed
from gradus.server.engine.pool import Pool
from gradus.server.models.registry import Models
from gradus.server.serve import Server, bind
from tests.pairwise import first
from tests.server.conftest import PLAIN, answering, eventually, processes
from tests.server.scripted import ScriptedCore, register, written
from tests.server.test_restarts import FAULT, PlayedLink, ask, until
from tests.server.test_sleep import submits


class Played:
    """A member whose work a test decides."""

    load_s = 5.0

    def __init__(self, pool, name):
        self.pool, self.name, self.log = pool, name, []
        self.work, self.loading, self.yields = 0, False, False

    @property
    def working(self):
        return self.loading or self.work > 0

    def load(self, share):
        self.loading, self.log = True, [*self.log, ("load", share)]

    def sleep(self):
        assert not self.working, "running requests were cut"
        self.yields, self.log = False, [*self.log, "sleep"]
        self.pool.leave(self)

    def take_turns(self, yields):
        self.yields = yields

    def loaded(self):
        self.loading = False
        self.pool.begins(self)

    def ends(self):
        self.work = 0
        self.pool.advance()


def played(most, names, clock=lambda: 0.0):
    pool = Pool(most, clock)
    return pool, [Played(pool, name) for name in names]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_models_that_are_loaded_are_the_last_ones_used(most):
    pool, members = played(most, "abcde")
    naive, chosen = OrderedDict(), random.Random(most)
    for _ in range(500):
        member = chosen.choice(members)
        if member in naive:
            naive.move_to_end(member)
            pool.used(member)
        else:
            if len(naive) == most:
                naive.popitem(last=False)
            naive[member] = None
            pool.claim(member)
            member.loaded()
        assert pool.loaded == tuple(naive)


def test_a_model_without_work_gives_way_before_an_older_one_that_works():
    pool, (a, b, c) = played(2, "abc")
    for member in (a, b):
        pool.claim(member)
        member.loaded()
    a.work = 1
    pool.claim(c)
    assert pool.loaded == (a, c) and b.log == [("load", (2, 2)), "sleep"]
    assert c.log == [("load", (2, 2))]  # with a


def test_a_model_yields_once_its_turn_has_lasted_as_long_as_its_load():
    now, later = [0.0], []
    pool, (a, b) = played(1, "ab", lambda: now[0])
    pool.start(lambda seconds, call: later.append((seconds, call)))
    pool.claim(a)
    a.loaded()
    a.work, now[0] = 3, 2.0
    pool.claim(b)
    pool.advance()
    assert not a.yields and [seconds for seconds, _ in later] == [3.0]  # one look is enough
    now[0] = 5.0
    later.pop()[1]()
    assert a.yields and pool.loaded == (a,)
    a.ends()
    assert pool.loaded == (b,) and a.log[-1] == "sleep"


def test_a_model_takes_requests_again_if_nobody_waits_for_its_place_any_more():
    now = [0.0]
    pool, (a, b) = played(1, "ab", lambda: now[0])
    pool.claim(a)
    a.loaded()
    a.work, now[0] = 1, 100.0
    pool.claim(b)
    assert a.yields
    assert pool.forgo(b) and not a.yields and not pool.forgo(a)
    a.ends()
    assert pool.loaded == (a,)


@pytest.mark.parametrize("seed", range(20))
def test_whoever_waits_gets_a_place_in_order_and_no_work_is_cut(seed):
    chosen, now = random.Random(seed), [0.0]
    most = chosen.choice((1, 2, 3))
    pool, members = played(most, "abcdef", lambda: now[0])
    waiting, order = [], []
    for _ in range(2000):
        now[0] += chosen.random()
        member = chosen.choice(members)
        match chosen.choice(("ask", "ask", "loaded", "ends", "rest")):
            case "ask" if member in pool.loaded and not member.yields:
                member.work += not member.loading
                pool.used(member)
            case "ask":
                if member not in pool.loaded and member not in waiting:
                    waiting.append(member)
                    order.append(member)
                pool.claim(member)
            case "loaded" if member.loading:
                member.loaded()
            case "ends":
                member.ends()
            case "rest" if member in pool.loaded and not member.working:
                member.sleep()
        pool.advance()
        assert len(pool.loaded) <= most
        came = [one for one in order if one in pool.loaded]
        assert came == order[: len(came)], "somebody was overtaken"
        order = order[len(came) :]
        waiting = [one for one in waiting if one not in pool.loaded]
        assert not waiting or len(pool.loaded) == most
    for _ in range(10):  # all work ends
        now[0] += 10.0
        for member in members:
            if member.loading:
                member.loaded()
            member.ends()
    assert not pool._wanting and not any(member.yields for member in members)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_models_are_called_by_their_own_names_or_by_given_ones(tmp_path):
    config = ServerConfig(models=("smollm2-135m", "code=qwen2.5-coder-0.5b", "big=random:llama-3.1-8b"))
    assert [(one.model, one.names, one.takes_any_name) for one in config.each()] == [
        ("smollm2-135m", ("smollm2-135m",), False),
        ("qwen2.5-coder-0.5b", ("code",), False),
        ("random:llama-3.1-8b", ("big",), False),
    ]
    path = tmp_path / "server.yaml"
    path.write_text("model: [smollm2-135m, code=qwen2.5-coder-0.5b]\nmax_loaded: 2\n")
    assert ServerConfig.from_yaml(path).models == ("smollm2-135m", "code=qwen2.5-coder-0.5b")
    assert ServerConfig.from_yaml(path).merge({"models": ["x"], "max_loaded": 1}).each()[0].model == "x"


def test_one_model_is_served_as_ever():
    assert ServerConfig(models=("x",)) == ServerConfig(model="x")
    named = ServerConfig(models=("mine=/models/a=b.gguf",))
    assert (named.model, named.served_model_name, named.each()) == ("/models/a=b.gguf", ("mine",), [named])
    assert ServerConfig(models=("./a=b",)).model == "./a=b"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"models": ("a", "a")}, "two models are called a: write NAME=MODEL for one of them"),
        ({"models": ("a", "b"), "phase": "p01"}, "phase is for one model, not for 2: "),
        ({"models": ("a", "b"), "served_model_name": ("c",)}, "write NAME=MODEL for each"),
        ({"models": ("a", "b"), "speculate": "draft:c"}, "speculate is for one model"),
        ({"models": ("a", "b"), "prefix_dir": "d"}, "prefix_dir is for one model"),
        ({"models": ("a", "b"), "tensor_parallel": 2}, "tensor_parallel is for one model"),
        ({"models": ("a", "b"), "max_loaded": 3}, "max_loaded must be at most 2, the number of models"),
        ({"models": ("a", "\n=b")}, "printable"),
    ],
)
def test_what_does_not_combine_with_several_models_is_refused_at_the_start(settings, reason):
    with pytest.raises(ConfigError) as told:
        ServerConfig(**settings)
    assert reason in str(told.value) and "\n" not in str(told.value)


def test_models_share_the_memory_in_equal_parts():
    two = ServerConfig(share=(1, 2)), ServerConfig(share=(2, 2))
    assert [memory_fraction(one, "cuda") for one in two] == [0.45, 0.9]  # of the whole, the first one's part included
    assert [memory_fraction(one, "cpu") for one in two] == [0.25, 0.25]  # of what is free
    assert memory_fraction(ServerConfig(share=(1, 2), memory_fraction=0.8), "cuda") == 0.4
    assert memory_fraction(ServerConfig(memory_fraction=0.8), "cuda") == 0.8
    assert memory_fraction(ServerConfig(), "cuda") is None  # the engine's own default, which may be lowered


# -- clients -----------------------------------------------------------------------------------------------------------


def taking_turns(play, **settings):
    """Run `play(a, b, load)` with the clients of two models that share one place; `load(client)` loads one."""

    async def run():
        pool = Pool(1)
        a, b = (
            EngineClient(
                ServerConfig(model=register(ScriptedCore), served_model_name=(name,), **settings),
                "tests.server.scripted",
                PlayedLink,
                pool,
                asleep=name == "b",
            )
            for name in "ab"
        )
        models = Models(a, b)
        models.start()
        await until(lambda: a._link.started and b.state == "asleep")

        def load(client):
            client.receive(Loaded(ScriptedCore().info, ScriptedCore().metrics()))

        load(a)
        try:
            await play(a, b, load)
        finally:
            await models.close()

    asyncio.run(run())


def finish(client, stream):
    """Have the engine end a request."""
    client.forget(stream, RuntimeError("ended"))


def test_running_requests_end_and_new_ones_wait_while_another_model_wants_the_place():
    async def play(a, b, load):
        running = a.submit(ask())
        known = asyncio.create_task(b.known())
        await asyncio.sleep(0.01)
        assert b.state == "waking" and b._link.started == 0
        await until(lambda: a.supervisor._holds)  # its turn is over
        later = a.submit(ask())
        assert submits(a._link) == [running.handles[0]] and a.state == "ready"
        finish(a, running)
        assert a._link.rested == 1 and a.state == "waking" and b._link.started == 1
        load(b)
        await known
        stream = b.submit(ask())
        assert submits(b._link) == [stream.handles[0]]
        finish(b, stream)
        await until(lambda: b.state == "asleep" and a._link.started == 2)
        load(a)
        assert submits(a._link) == [running.handles[0], later.handles[0]]

    taking_turns(play)


def test_a_model_that_nobody_waits_for_any_more_takes_no_place():
    async def play(a, b, load):
        running = a.submit(ask())
        known = asyncio.create_task(b.known())
        await until(lambda: a.supervisor._holds)
        later = a.submit(ask())
        known.cancel()
        await asyncio.sleep(0.01)
        assert b.state == "asleep" and submits(a._link) == [running.handles[0], later.handles[0]]
        finish(a, running)
        assert b._link.started == 0 and a._link.rested == 0

    taking_turns(play)


def test_a_load_that_fails_is_told_to_those_that_wait_and_another_model_gets_the_place():
    async def play(a, b, load):
        known = asyncio.create_task(b.known())
        await until(lambda: b._link.started)
        assert a.state == "asleep"
        b.receive(LoadFailed(Failure("GradusError", "a shard is missing")))
        with pytest.raises(Exception, match="a shard is missing"):
            await known
        assert b.state == "restarting"
        a.submit(ask())
        assert a._link.started == 2 and b.state == "asleep"
        await asyncio.sleep(0.7)
        assert b._link.started == 1  # no other start is due

    taking_turns(play)


def test_a_failed_engine_whose_place_is_taken_at_once_is_not_started_again():
    async def play(a, b, load):
        a.submit(ask())
        known = asyncio.create_task(b.known())
        await until(lambda: a.supervisor._holds)
        a.receive(FAULT)
        assert a.state == "asleep" and b._link.started == 1
        await asyncio.sleep(0.7)
        assert a._link.started == 1
        load(b)
        await known

    taking_turns(play)


def test_a_drain_serves_the_models_that_wait_for_their_turn():
    async def play(a, b, load):
        running = a.submit(ask())
        load_b = asyncio.create_task(b.known())
        await until(lambda: a.supervisor._holds)
        finish(a, running)
        load(b)
        await load_b
        there, waiting = b.submit(ask()), a.submit(ask())
        draining = asyncio.create_task(Models(a, b).drain(5))
        await asyncio.sleep(0.01)
        await until(lambda: b.supervisor._holds)
        finish(b, there)
        assert (a.state, b.state, a._link.started) == ("draining", "draining", 2)
        load(a)
        assert submits(a._link)[-1] == waiting.handles[0]
        finish(a, waiting)
        await asyncio.wait_for(draining, 2)

    taking_turns(play)


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three():
    """Three models with a place for one: their answers differ by their text."""
    texts = {"a": " ", "b": "b ", "c": "c "}
    models = tuple(f"{name}={written(f'ScriptedCore(piece={piece!r})')}" for name, piece in texts.items())
    config = ServerConfig(models=models, port=0)
    with answering(config, Models.of(config, "tests.server.scripted")) as server:
        yield server


def completed(server, model, tokens=3):
    return server.http.post("/v1/completions", json={"model": model, "prompt": "a", "max_tokens": tokens})


def test_a_request_is_answered_by_the_model_that_it_names(three):
    for name, text in (("a", "0 1 2 "), ("b", "0b 1b 2b "), ("c", "0c 1c 2c "), ("a", "0 1 2 ")):
        answer = completed(three, name).json()
        assert (answer["model"], answer["choices"][0]["text"]) == (name, text)
    assert three.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).json()["model"] == "a"
    unknown = completed(three, "x")
    assert unknown.status_code == 404 and "one of a, b, c" in unknown.json()["error"]["message"]
    assert eventually(lambda: len(processes()) == 1)


def test_the_models_are_listed_with_their_states(three):
    assert completed(three, "b").status_code == 200
    listed = three.http.get("/v1/models").json()["data"]
    assert {one["id"]: one["state"] for one in listed} == {"a": "asleep", "b": "ready", "c": "asleep"}
    assert three.http.get("/v1/models/c").json()["id"] == "c"
    assert three.http.get("/v1/models/x").status_code == 404
    page = three.http.get("/v1/models?after_id=a&limit=1").json()
    assert [one["id"] for one in page["data"]] == ["b"] and page["has_more"]
    health = three.http.get("/health")
    assert health.status_code == 200 and health.json()["models"]["a"]["status"] == "asleep"
    stats = three.http.get("/stats").json()
    assert stats["loaded"] == ["b"] and stats["models"]["b"]["state"] == "ready"


def test_each_model_has_its_own_metrics(three):
    assert completed(three, "c").status_code == 200
    families = {one.name: one for one in text_string_to_metric_families(three.http.get("/metrics").text)}
    asleep = {sample.labels["model"]: sample.value for sample in families["gradus_engine_asleep"].samples}
    assert asleep == {"a": 1.0, "b": 1.0, "c": 0.0}
    names = {sample.labels["model_name"] for sample in families["vllm:e2e_request_latency_seconds"].samples}
    assert names == {"a", "b", "c"}
    handlers = [sample.labels for sample in families["http_requests"].samples]
    assert len(handlers) == len({tuple(sorted(one.items())) for one in handlers})


@pytest.mark.parametrize("count", first([3, 10]))
def test_requests_of_ten_clients_at_random_are_all_answered_and_nothing_is_left(three, count):
    chosen, answers = random.Random(7), []

    def client(names):
        with httpx.Client(base_url=three.url, timeout=120, **PLAIN) as http:
            for name, tokens in names:
                body = {"model": name, "prompt": "a", "max_tokens": tokens}
                answer = http.post("/v1/completions", json=body)
                text = "".join(f"{number}{name.replace('a', '')} " for number in range(tokens))
                answers.append(answer.status_code == 200 and answer.json()["choices"][0]["text"] == text)

    lists = [[(chosen.choice("abc"), chosen.choice((1, 5, 200))) for _ in range(count)] for _ in range(10)]
    clients = [threading.Thread(target=client, args=(each,)) for each in lists]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert len(answers) == 10 * count and all(answers)
    models = three.server.models
    assert eventually(lambda: not any(one._streams or one._handles or one.waiting for one in models))
    assert not any(one.supervisor.held for one in models) and not models.first.pool._wanting
    assert eventually(lambda: len(processes()) == 1)
    assert len([one for one in models if one.loaded_now]) == 1


def test_a_client_that_leaves_before_a_models_first_load_leaves_nothing():
    slow = f"b={written('(__import__(chr(116) + chr(105) + chr(109) + chr(101)).sleep(1.0), ScriptedCore())[1]')}"
    config = ServerConfig(models=(f"a={written('ScriptedCore()')}", slow), port=0)
    with answering(config, Models.of(config, "tests.server.scripted")) as server:
        b = server.server.models.called("b")
        with pytest.raises(httpx.ReadTimeout):
            server.http.post("/v1/completions", json={"model": "b", "prompt": "a"}, timeout=0.3)
        assert eventually(lambda: not b._readers)
        assert completed(server, "a").status_code == 200


def test_a_model_that_is_not_there_is_found_at_the_start(tmp_path):
    config = ServerConfig(models=("random:tiny-llama", f"b={tmp_path / 'missing.gguf'}"), port=0)
    server = Server(config, Models.of(config))
    server.run(sockets=[bind(config)])
    assert "no model named" in str(server.load_error)


def test_two_models_may_be_loaded_at_once():
    models = tuple(f"{name}={written('ScriptedCore()')}" for name in "abc")
    config = ServerConfig(models=models, max_loaded=2, port=0)
    with answering(config, Models.of(config, "tests.server.scripted")) as server:
        before = len(processes())
        for name in "abaca":
            assert completed(server, name).status_code == 200
        states = {one.model: one.state for one in server.server.models}
        assert states == {"a": "ready", "b": "asleep", "c": "ready"}
        assert eventually(lambda: len(processes()) == before + 1)


def test_real_models_take_turns_and_answer_the_same_afterwards_and_grammars_hold():
    config = ServerConfig(models=("a=random:tiny-llama", "b=random:tiny-qwen3"), device="cpu", dtype="float32", port=0)
    with answering(config, Models.of(config)) as server:

        def texts(name):
            kinds = ({"structured_outputs": {"choice": ["yes", "no"]}}, {"temperature": 0}, {"seed": 7})
            bodies = ({"model": name, "prompt": [5, 6, 7], "max_tokens": 8, **kind} for kind in kinds)
            return [server.http.post("/v1/completions", json=body).json()["choices"][0]["text"] for body in bodies]

        mine, other, again = (texts(name) for name in "aba")  # each starts an engine
        assert mine[0] in ("yes", "no") and again[0] in ("yes", "no")
        assert mine[1:] != other[1:] and again[1:] == mine[1:]
