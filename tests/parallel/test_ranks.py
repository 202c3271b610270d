"""An engine whose model several processes share: p00's tokens, and one line when a process has gone."""

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from gradus import LLM, SamplingParams
from gradus.errors import ConfigError, GradusError
from gradus.parallel.group import RankLost
from gradus.parallel.ranks import SIGN_OF_LIFE_S, Ranks

SETTINGS = {"device": "cpu", "dtype": "float32", "cache_tokens": 2048, "max_sequences": 3, "context_length": 512}
PROMPTS = [[5, 6, 7, 8], [9] * 40, [3, 4], list(range(1, 60))]
SAMPLED = SamplingParams(max_tokens=16, temperature=0.8, seed=3, frequency_penalty=0.5, logprobs=2)


def answers(llm):
    return [
        (each.token_ids, [(one.token_id, round(one.logprob, 3)) for one in each.logprobs or ()])
        for params in (SamplingParams(max_tokens=16), SAMPLED)
        for each in llm.generate(PROMPTS, params)
    ]


@pytest.mark.parametrize(
    ("shape", "tensor", "pipeline"),
    [
        ("tiny-llama", 2, 1),
        # tests/capabilities has these two, and more settings, in every run
        pytest.param("tiny-gemma3", 1, 2, marks=pytest.mark.stress),
        pytest.param("tiny-qwen2-moe", 2, 1, marks=pytest.mark.stress),  # experts next to an MLP
        pytest.param("tiny-qwen3-moe", 4, 1, marks=pytest.mark.stress),
        pytest.param("tiny-gpt-oss", 2, 1, marks=pytest.mark.stress),
        pytest.param("tiny-glm4-moe", 1, 2, marks=pytest.mark.stress),
        pytest.param("tiny-gpt2", 2, 1, marks=pytest.mark.stress),
        pytest.param("tiny-qwen3", 2, 2, marks=pytest.mark.stress),
        pytest.param("tiny-llama", 4, 1, marks=pytest.mark.stress),  # two key-value heads: ranks share them
    ],
)
def test_it_has_the_tokens_of_the_reference(shape, tensor, pipeline):
    with LLM(f"random:{shape}", phase="p00", device="cpu", dtype="float32", context_length=512) as reference:
        wanted = answers(reference)
    with LLM(f"random:{shape}", tensor_parallel=tensor, pipeline_parallel=pipeline, **SETTINGS) as llm:
        assert answers(llm) == wanted
        llm.check()


COPYING = [[5, 6, 7, 8, 9] * 6, [9, 4] * 12, [3, 1, 4, 1, 5]]


@pytest.mark.parametrize("overlap", [True, False])
def test_drafts_are_verified_on_all_ranks_and_change_no_token(overlap):
    """Each rank looks drafts up in its own history; texts are sampled, penalized and constrained as well as copied."""
    params = [
        SamplingParams(max_tokens=40, ignore_eos=True),
        SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, seed=3, repetition_penalty=1.1),
        SamplingParams(max_tokens=40, structured={"regex": "[ab]{2,30}"}, logprobs=1),
    ]
    found = []
    for settings in ({}, {"tensor_parallel": 2, "speculate": "ngram", "drafts": 3}):
        off = () if overlap else ("overlap",)
        with LLM("random:tiny-llama", switch_off=off, **settings, **SETTINGS) as llm:
            found.append([each.token_ids for each in llm.generate(COPYING, params)])
            speculation = llm.core.metrics().speculation
            llm.check()
    assert found[0] == found[1]
    assert speculation is not None and sum(speculation.accepted) > 10


@pytest.fixture
def shared():
    llm = LLM("random:tiny-llama", tensor_parallel=2, **SETTINGS)
    yield llm
    llm.close()


def other_processes():
    return [each for each in psutil.Process().children() if "gradus.assembly.rank" in " ".join(each.cmdline())]


def other_process(llm):
    (child,) = other_processes()
    return child


@pytest.mark.parametrize(
    ("sign", "what"), [(signal.SIGKILL, "has died"), (signal.SIGSTOP, "has shown no sign of life for 4 s")]
)
def test_a_rank_that_dies_or_hangs_ends_the_engine_in_one_line_within_seconds(shared, sign, what):
    other, sent = other_process(shared), []
    timer = threading.Timer(0.3, lambda: sent.append(time.monotonic()) or os.kill(other.pid, sign))
    timer.start()
    with pytest.raises(RankLost, match=f"^rank 1 of 2 {what}: load the model again$"):
        while True:
            shared.generate([[1, 2, 3]] * 3, SamplingParams(max_tokens=400))
    assert time.monotonic() - sent[0] < 12  # five, and room for a busy machine
    with pytest.raises(GradusError, match="load the model again"):
        shared.generate([[1, 2]])
    shared.close()
    assert not other.is_running() or other.status() == psutil.STATUS_ZOMBIE


def test_a_rank_outlives_a_ctrl_c_that_reaches_all_processes_and_ends_with_its_engine(shared):
    other, folder = other_process(shared), os.path.dirname(shared.engine.runner.ranks.path)
    assert os.stat(folder).st_mode & 0o777 == 0o700
    other.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert len(shared.generate([[1, 2, 3]], SamplingParams(max_tokens=4))[0].token_ids) == 4
    assert other.is_running()
    shared.close()
    assert not other.is_running() and not os.path.exists(folder)


def test_a_rank_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path)
    ranks = Ranks(2, "tests.parallel.ready", {})
    try:
        ranks.wait_until_ready()
    finally:
        ranks.close()


def test_a_rank_inside_a_step_ends_itself_once_rank_0_has_gone():
    ranks = Ranks(2, "tests.parallel.stuck", {})
    (process,) = ranks._processes
    ranks.wait_until_ready()
    ranks.close()
    assert process.returncode == 0, "it had to be killed"


def test_a_program_that_was_stopped_itself_blames_no_rank(monkeypatch):
    stopped_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + stopped_s[0])
    monkeypatch.setattr("gradus.parallel.ranks.time", clock)
    ranks = Ranks(2, "tests.parallel.ready", {})
    try:
        ranks.wait_until_ready()
        stopped_s[0] = 60.0
        time.sleep(3 * SIGN_OF_LIFE_S)
        ranks.check()
    finally:
        ranks.close()


def test_a_step_that_notices_a_loss_itself_does_not_wait_for_the_exchange_to_end(monkeypatch):
    """NCCL ends once the CUDA graphs are gone, which the thread that runs steps holds."""
    ranks = Ranks(2, "tests.parallel.ready", {})
    graphs_gone, ended = threading.Event(), threading.Event()
    ranks.on_loss = lambda: graphs_gone.wait(30) and ended.set()
    try:
        ranks.wait_until_ready()

        def broken(message):
            raise BrokenPipeError

        monkeypatch.setattr(ranks._channels[0], "send", broken)
        begun = time.monotonic()
        with pytest.raises(RankLost, match=r"^rank 1 of 2 has died"):
            ranks.tell(b"a plan")
        assert time.monotonic() - begun < 5
        graphs_gone.set()
    finally:
        ranks.close()
    ranks.join()
    assert ended.is_set()


def test_no_rank_outlives_its_program():
    code = (
        "import os, psutil\n"
        "from gradus import LLM\n"
        f"llm = LLM('random:tiny-llama', tensor_parallel=2, **{SETTINGS!r})\n"  # no main guard: none is needed
        "print(psutil.Process().children()[0].pid, llm.engine.runner.ranks.path, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip(), done.stderr
    pid, path = done.stdout.split()
    pid, end = int(pid), time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, "it lives on"
        time.sleep(0.05)
    assert not os.path.exists(os.path.dirname(path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tensor_parallel": 3}, "num_attention_heads 4 cannot be divided among 3 devices"),
        ({"pipeline_parallel": 2, "speculate": "ngram"}, "speculate does not work with pipeline_parallel"),
        ({"tensor_parallel": 2, "speculate": "draft:random:tiny-llama"}, "set speculate to ngram"),
        ({"tensor_parallel": 2, "quantize": "int8"}, "quantize does not work with tensor_parallel"),
        ({"pipeline_parallel": 64}, "pipeline_parallel 64: the model has only"),
        ({"tensor_parallel": 8, "pipeline_parallel": 9}, "must be at most 64, got 72"),
        ({"tensor_parallel": 2, "phase": "p04"}, "tensor_parallel does nothing in phase p04"),
    ],
)
def test_what_does_not_work_is_refused_before_anything_is_started(settings, message):
    with pytest.raises(ConfigError, match=message):
        LLM("random:tiny-llama", device="cpu", **settings)
    assert not other_processes()


def test_a_rank_that_cannot_load_says_why(monkeypatch):
    import gradus.assembly.parallel as assembly

    job = assembly._job
    monkeypatch.setattr(assembly, "_job", lambda *given: job(*given) | {"model": "random:no-such-shape"})
    with pytest.raises(RankLost, match=r"rank 1 of 2 failed: .*no-such-shape"):
        LLM("random:tiny-llama", tensor_parallel=2, **SETTINGS)


@pytest.mark.parametrize("kind", ["tensor_parallel", "pipeline_parallel"])
def test_a_rank_that_dies_before_the_ranks_have_met_is_named_within_seconds(kind, monkeypatch):
    monkeypatch.setattr("gradus.assembly.parallel.OTHER_RANK", "tests.parallel.gone")
    begun = time.monotonic()
    with pytest.raises(RankLost, match=r"^rank 1 of 2 has died: load the model again$"):
        LLM("random:tiny-llama", **{kind: 2}, **SETTINGS)
    assert time.monotonic() - begun < 60  # its program takes some of it to start


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.stress)])
def test_all_ranks_score_a_prompt_in_step(tensor, pipeline):
    """Each rank has a part of the head, so every product with it is an exchange, and all must make as many."""
    scored = SamplingParams(max_tokens=4, prompt_logprobs=2)

    def scores(**settings):
        with LLM("random:tiny-llama", **SETTINGS, token_budget=32, **settings) as llm:
            done = llm.generate(PROMPTS, [SAMPLED, scored, scored, scored])
        return [[(one.token_id, round(one.logprob, 3)) for one in each.prompt_logprobs or ()] for each in done]

    assert scores(tensor_parallel=tensor, pipeline_parallel=pipeline) == scores()


def test_a_dry_run_plans_what_one_rank_takes():
    from gradus.loading import open_checkpoint
    from gradus.server.config import ServerConfig
    from gradus.server.engine.loading import planned

    settings = {"model": "random:tiny-llama", "device": "cpu", "dtype": "float32"}
    whole, _ = planned(ServerConfig(**settings), open_checkpoint(settings["model"]))
    part, _ = planned(ServerConfig(**settings, tensor_parallel=2), open_checkpoint(settings["model"]))
    assert part.weight_bytes < 0.6 * whole.weight_bytes
    assert part.memory_fraction == whole.memory_fraction / 2


def test_a_loss_that_several_threads_notice_is_one():
    class Slow(Ranks):
        """Takes long between looking for a loss and recording one."""

        @property
        def _lost(self):
            return self.__dict__.get("lost")

        @_lost.setter
        def _lost(self, what):
            time.sleep(0.02)
            self.__dict__["lost"] = what

    ranks, losses, all_there = Slow(1, "", {}), [], threading.Barrier(4)
    ranks.on_loss = lambda: losses.append(threading.current_thread())

    def lose(index):
        all_there.wait()
        ranks._lose(index, "has died")

    threads = [threading.Thread(target=lose, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ranks.close()
    ranks.join()
    assert len(losses) == 1
    with pytest.raises(RankLost, match="has died: load the model again"):
        ranks.check()
