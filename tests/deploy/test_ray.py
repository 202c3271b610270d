"""Replicas on a real Ray, installed by `make clients` in an environment of its own: streams, hits, deaths, updates."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sysconfig
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from tests.clients.installing import ROOT, folder, obstacle

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

KEY = "a-key-of-this-test-alone"
AUTH = {"Authorization": f"Bearer {KEY}"}
STEP_S = 0.01


class Deployed:
    """The program, and a client of it."""

    def __init__(self, replicas=2, step_s=STEP_S, most=0, running=64):
        if (reason := obstacle("ray")) is not None:
            pytest.skip(reason)
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), sysconfig.get_path("purelib")])
        self.process = subprocess.Popen(
            [str(folder("ray") / "venv" / "bin" / "python"), "-m", "tests.deploy.program"]
            + [str(each) for each in (replicas, step_s, most, running)],
            env=os.environ | {"PYTHONPATH": path, "GRADUS_API_KEY": KEY, "PYTHONUNBUFFERED": "1"},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        line = self.process.stdout.readline()
        assert " at http" in line, self.process.stderr.read()
        limits = httpx.Limits(max_connections=100)
        self.http = httpx.Client(base_url=line.split(" at ")[1].strip(), headers=AUTH, timeout=60, limits=limits)

    def generate(self, prompt, tokens=2, **fields):
        answer = self.http.post("/generate", json={"prompt": prompt, "max_tokens": tokens, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()["text"]

    def events(self, prompt, tokens):
        """Yield a stream's events as (seconds since the request, data)."""
        began = time.monotonic()
        body = {"prompt": prompt, "max_tokens": tokens, "stream": True}
        with self.http.stream("POST", "/generate", json=body) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield time.monotonic() - began, line.removeprefix("data: ")

    def replica_of(self, prompt):
        return replica_in(self.generate(prompt))

    def deploy_again(self):
        self.process.stdin.write("again\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "deployed again\n"

    def end(self):
        """Have it drain and end. Returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=90)
        return self.process.returncode


def replica_in(text):
    """The process of the replica that wrote a text; it is one alone."""
    (replica,) = set(re.findall(r"@(\d+)", text))
    return int(replica)


def text_of(events):
    return "".join(json.loads(data).get("text", "") for _, data in events if data.startswith("{"))


@contextlib.contextmanager
def deployed(**options):
    found = Deployed(**options)
    try:
        yield found
    finally:
        found.end()


@pytest.fixture(scope="module")
def shared():
    with deployed() as found:
        yield found


def test_tokens_of_a_stream_arrive_one_by_one(shared):
    events = list(shared.events("hello", 40))
    assert events[-1][1] == "[DONE]" and text_of(events).count("@") == 40
    times = [at for at, data in events if "text" in data]
    assert len(times) >= 35  # few steps share a message
    assert times[0] < 0.5 * times[-1] and times[-1] >= 39 * STEP_S


def test_keys_work_as_in_the_server(shared):
    body = {"prompt": "hello", "max_tokens": 2}
    for headers in ({"Authorization": "Bearer wrong-key-of-nobody"}, {"Authorization": ""}):
        assert shared.http.post("/generate", json=body, headers=headers).status_code == 401
    assert shared.http.get("/health", headers={"Authorization": ""}).json()["status"] == "ready"


def test_a_refusal_is_the_replicas_own(shared):
    answer = shared.http.post("/generate", json={"prompt": "hello", "max_tokens": 0})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "max_tokens"


def test_a_client_that_leaves_ends_its_request(shared):
    stream = shared.events("hello", 4000)
    next(stream)
    stream.close()
    ends = time.monotonic() + 10
    while any(shared.http.get("/stats").json()["active"] for _ in range(8)):
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_prompts_go_where_their_prefix_was_served(shared):
    """12 documents with 8 questions each, four at a time: at best, each document is new to one replica once."""
    documents = [f"{number} " * 1500 for number in random.Random(1).sample(range(1000, 9999), 12)]
    prompts = [(document, f"question {number}") for document in documents for number in range(8)]
    random.Random(2).shuffle(prompts)
    with ThreadPoolExecutor(4) as pool:
        replicas = list(pool.map(lambda prompt: shared.replica_of("".join(prompt)), prompts))
    known, hits = defaultdict(set), 0
    for (document, _), replica in zip(prompts, replicas, strict=True):
        hits += document in known[replica]
        known[replica].add(document)
    rate = hits / (len(prompts) - len(documents))
    print(f"hit rate {rate:.3f} of the best possible; requests per replica {Counter(replicas)}")
    assert rate >= 0.9
    assert min(len(served) for served in known.values()) >= 3 and len(known) == 2  # and not all on one


def test_a_replica_that_is_killed_takes_only_its_own_streams_with_it():
    with deployed() as found, ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(lambda number=number: list(found.events(f"{number}", 300))) for number in range(8)]
        time.sleep(1)
        victim = found.replica_of("who")
        children = psutil.Process(victim).children(recursive=True)
        os.kill(victim, signal.SIGKILL)
        ended = [stream.result(60) for stream in streams]
        lost = [events for events in ended if replica_in(text_of(events)) == victim]
        kept = [events for events in ended if replica_in(text_of(events)) != victim]
        assert lost and kept
        assert all("replica_lost" in events[-1][1] for events in lost)
        assert all(events[-1][1] == "[DONE]" and text_of(events).count("@") == 300 for events in kept)
        ends, seen = time.monotonic() + 60, set()
        while len(seen - {victim}) < 2:  # another takes its place
            assert time.monotonic() < ends, seen
            with ThreadPoolExecutor(4) as more:
                seen |= set(more.map(found.replica_of, "abcd"))
        assert children and not any(child.is_running() for child in children)  # its engine ends with it
        assert found.end() == 0


def test_a_front_that_is_killed_comes_back_at_the_same_address_and_no_request_stays_counted():
    with deployed() as found:
        (front,) = (each for each in psutil.Process(found.process.pid).children(True) if is_front(each))
        stream = found.events("hello", 4000)
        next(stream)
        front.kill()
        with pytest.raises(httpx.HTTPError):
            list(stream)
        ends = time.monotonic() + 30
        while True:
            try:
                assert not any(found.http.get("/stats").json()["active"] for _ in range(8))
                break
            except (AssertionError, httpx.HTTPError):
                assert time.monotonic() < ends
                time.sleep(0.2)
        assert found.end() == 0


def is_front(process):
    with contextlib.suppress(psutil.Error):
        return "ServeReplica:front" in " ".join(process.cmdline())


def test_an_update_and_the_end_lose_no_request():
    with deployed() as found:
        stop, answers, failures = threading.Event(), [], []

        def load():
            while not stop.is_set():
                try:
                    answers.append(replica_in(found.generate("hello", tokens=20)))
                except (AssertionError, httpx.HTTPError) as error:
                    failures.append(repr(error))

        loads = [threading.Thread(target=load) for _ in range(4)]
        for each in loads:
            each.start()
        time.sleep(1)
        before = set(answers)
        found.deploy_again()
        time.sleep(1)
        stop.set()
        for each in loads:
            each.join()
        print(f"{len(answers)} answers and {len(failures)} failures during an update: {failures[:3]}")
        assert not failures and len(before) == 2 and not before & set(answers[-8:])

        stream = found.events("a long one", 300)
        first = next(stream)
        found.process.send_signal(signal.SIGTERM)
        events = [first, *stream]
        assert events[-1][1] == "[DONE]" and text_of(events).count("@") == 300
        assert found.end() == 0


def test_more_requests_than_a_replica_runs_start_more_replicas():
    """Ray looks at the number of requests under way, which a front holds open until their last token."""
    with deployed(replicas=1, most=3, running=2) as found, ThreadPoolExecutor(8) as pool:
        ends = time.monotonic() + 150
        seen = set()

        def load():
            while time.monotonic() < ends and len(seen) < 3:
                seen.add(replica_in(found.generate("hello", tokens=100)))

        began = time.monotonic()
        for each in [pool.submit(load) for _ in range(8)]:
            each.result()
        print(f"{len(seen)} replicas answered after {time.monotonic() - began:.0f} s")
        assert len(seen) == 3
        assert found.end() == 0
