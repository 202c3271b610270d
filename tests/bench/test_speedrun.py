"""The speedrun: the same work everywhere, every token judged, and logs in which a slip or a trick is found."""

import json
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from gradus.bench.measure.drive import ContenderFailed
from gradus.bench.report import block
from gradus.bench.speedrun import oracle, run, table, workload
from gradus.bench.speedrun.contestants import EngineContestant, LlamaCppContestant
from gradus.bench.speedrun.log import Log, hash_of, score_of, unfit
from gradus.bench.speedrun.neighbors import Moment, share
from gradus.bench.speedrun.oracle import Verdict
from gradus.bench.speedrun.rules import CLASSES, CLOSE, CONTEXT, MODEL, REPETITIONS, REQUESTS, SEED, VERSION
from gradus.bench.speedrun.text import ASSISTANT, EXAMPLES, SENTENCES
from gradus.bench.speedrun.verify import against_the_model, verify
from gradus.bench.speedrun.workload import Ask
from gradus.cli import main
from gradus.course.foreign.weights import Models
from gradus.errors import ConfigError
from gradus.loading import Checkpoint, Tokenizer, open_checkpoint
from tests.pairwise import first

ROOT = Path(__file__).parents[2]
LOGS = sorted((ROOT / "reports" / table.NAME).glob("*.json"))
MACHINE = {"system": "Linux", "processor": "a processor", "cores": "2", "device": "cpu", "gpus": 0}
BEFORE = run.Before("cpu-2", MACHINE, [0.1, 0.1, 0.1])


class Words(Tokenizer):
    """A token per word, of the first 20 and the last 5."""

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        words = text.split()
        return [zlib.crc32(word.encode()) % 256 for word in (words if len(words) <= 25 else words[:20] + words[-5:])]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Checkpoint:
    folder = Models(tmp_path_factory.mktemp("speedrun")).given()
    return replace(open_checkpoint(str(folder)), tokenizer=Words.of_bytes())


class Spoiled(EngineContestant):
    """Gets one answer of a repetition, or of a warm-up, wrong."""

    def __init__(self, *given, where: int, **settings):
        super().__init__(*given, **settings)
        self.where, self.runs = where, 0

    def run(self, asks):
        answers = super().run(asks)
        if self.runs == self.where:
            answers[2] = [(token + 7) % 256 for token in answers[2]]
        self.runs += 1
        return answers


def logged(checkpoint: Checkpoint, contestant: EngineContestant) -> Log:
    measured = run.measure(checkpoint, contestant)
    measured = replace(measured, runs=[replace(one, others=0.01) for one in measured.runs])  # tests run side by side
    answers = [one.answers for one in measured.runs]
    verdict = run.judged(checkpoint, measured.seed, measured.warm_up, answers)
    log = run.log_of(checkpoint, BEFORE, contestant, measured, verdict, ["speedrun", "--phase", "p06"])
    return replace(log, commit="0123456789ab", changed=False)  # this checkout may be in the middle of a change


@pytest.fixture(scope="module")
def log(tiny) -> Log:
    return logged(tiny, EngineContestant(tiny, {"phase": "p06", "device": "cpu", "dtype": "float32"}))


def faults(log: Log, checkpoint: Checkpoint) -> str:
    return " · ".join(log.faults()) or " · ".join(against_the_model(log, checkpoint))


# -- the workload ------------------------------------------------------------------------------------------------------


def test_another_workload_needs_another_version_of_the_rules():
    asks = workload.asks(lambda text: list(text.encode()), SEED)
    assert (VERSION, workload.digest(asks)[:16]) == (1, "df22372bb4279a7d")


def test_requests_share_two_beginnings_and_come_in_a_mixed_order():
    asks = workload.asks(lambda text: list(text.encode()), SEED)
    beginnings = [bytes(ask.prompt[:20]).decode() for ask in asks]
    assert len(asks) == REQUESTS
    assert sorted(map(beginnings.count, set(beginnings)), reverse=True) == [6, 6, 1, 1, 1, 1]
    assert beginnings != sorted(beginnings)
    assert {ask.max_tokens for ask in asks} > {workload.SUMMARY}


def test_a_warm_up_shares_no_beginning_with_the_run_and_is_new_with_its_seed():
    def encode(text: str) -> list[int]:
        return list(text.encode())

    firsts = {ask.prompt[:1] for ask in workload.asks(encode, SEED)}
    warm_up = workload.warm_up(encode, 1)
    assert len(warm_up) == workload.WARM_UPS and not firsts & {ask.prompt[:1] for ask in warm_up}
    assert workload.digest(warm_up) != workload.digest(workload.warm_up(encode, 2))


@pytest.mark.weights
def test_the_page_counts_the_tokens_that_the_workload_has():
    encode = run.encoding(open_checkpoint(MODEL))
    asks = workload.asks(encode, SEED)
    prompts, answers = sum(len(ask.prompt) for ask in asks), [ask.max_tokens for ask in asks]
    assert max(len(ask.prompt) + ask.max_tokens for ask in asks) <= CONTEXT
    beginnings, document = [len(encode(one)) for one in (ASSISTANT, EXAMPLES)], len(encode(" ".join(SENTENCES)))
    page = " ".join((ROOT / "docs" / "speedrun.md").read_text(encoding="utf-8").split())
    assert f"sixteen requests, {prompts:,} tokens in and {sum(answers)} out" in page
    assert "two shared beginnings of {} and {} tokens".format(*beginnings) in page
    assert f"a document of {document}; four" in page
    assert f"from {min(answers)} to {max(answers)}, and" in page


# -- the judge ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap", "passes"), [(0.0, True), (CLOSE, True), (CLOSE + 0.01, False)])
def test_a_close_call_passes_and_a_wider_gap_does_not(gap, passes, tiny, monkeypatch):
    monkeypatch.setattr(oracle, "gaps", lambda model, ask, answer: [(0.0, 5, 5), (gap, 6, 7)])
    verdict = oracle.judge(oracle.load(tiny), [("request 1", Ask((1, 2), 2), [5, 6])])
    assert (verdict.wrong == "") is passes and verdict.tokens == 2
    assert verdict.likeliest == (2 if gap == 0 else 1)
    if not passes:
        assert verdict.wrong == "request 1, token 2 is 6, whose logit is 0.26 below that of 7; at most 0.25 is allowed"


@pytest.mark.parametrize("answer", [[5], [5, 6, 7], [5, -1], [5, 10**6]])
def test_an_answer_of_another_length_or_outside_of_the_vocabulary_is_wrong(answer, tiny):
    assert "request 1 wants 2 tokens" in oracle.judge(oracle.load(tiny), [("request 1", Ask((1, 2), 2), answer)]).wrong


# -- logs --------------------------------------------------------------------------------------------------------------


def test_a_right_run_is_fit_for_the_table_and_its_file_says_the_same(log, tiny, tmp_path):
    log.write(tmp_path / "log.json")
    assert verify(tmp_path / "log.json", tiny) == (log, [])
    assert log.verdict["likeliest"] == log.verdict["tokens"] and len(log.runs) == REPETITIONS
    assert log.engine["settings"] == {"context_length": CONTEXT, "phase": "p06", "device": "cpu", "dtype": "float32"}
    assert log.command == "gradus speedrun --phase p06"


def test_the_final_engine_gives_the_same_tokens(log, tiny):
    measured = run.measure(tiny, EngineContestant(tiny, {"device": "cpu", "dtype": "float32"}), repetitions=1)
    assert [hash_of(answer) for answer in measured.runs[0].answers] == log.runs[0]["hashes"]


@pytest.mark.parametrize("where", first([5, 1]))
def test_a_wrong_token_is_found_in_whichever_repetition_it_is(where, tiny):
    spoiled = Spoiled(tiny, {"phase": "p06", "device": "cpu", "dtype": "float32"}, where=where)
    assert "a token is wrong: request" in faults(logged(tiny, spoiled), tiny)


def test_a_wrong_token_of_the_last_warm_up_is_found_whose_prompts_are_new_every_time(tiny):
    spoiled = Spoiled(tiny, {"phase": "p06", "device": "cpu", "dtype": "float32"}, where=4)
    assert "a token is wrong: request" in faults(logged(tiny, spoiled), tiny)


def test_an_edited_file_is_refused(log, tiny, tmp_path):
    file = tmp_path / "log.json"
    log.write(file)
    text = file.read_text()
    for old, new in (
        ('"cores": "2"', '"cores": "1"'),
        ("0123456789ab", "0123456789ac"),
        ("--phase p06", "--phase p05"),
    ):
        assert old in text
        file.write_text(text.replace(old, new))
        with pytest.raises(ConfigError, match="edited since it was written"):
            verify(file, tiny)


def swapped(log: Log) -> Log:
    """The log with a wrong token, under the hash of the right ones."""
    name = log.runs[0]["hashes"][0]
    tokens = [*log.answers[name][:-1], (log.answers[name][-1] + 7) % 256]
    return replace(log, answers=log.answers | {name: tokens})


def rehashed(log: Log) -> Log:
    """The log with a wrong token, and with its hash everywhere."""
    name, edited = log.runs[0]["hashes"][0], swapped(log)
    new = hash_of(edited.answers[name])
    runs = [one | {"hashes": [new if each == name else each for each in one["hashes"]]} for one in log.runs]
    return replace(edited, runs=runs, answers={new if key == name else key: v for key, v in edited.answers.items()})


EDITS = {
    "a token": (swapped, "the tokens under"),
    "a token and its hash": (rehashed, "a token is wrong: request 1, token"),
    "an answer left out": (lambda log: replace(log, answers=dict(list(log.answers.items())[:-1])), "is not in the log"),
    "a faster run": (
        lambda log: replace(log, runs=[one | {"seconds": one["seconds"] / 2} for one in log.runs]),
        "its score is",
    ),
    "a better score": (lambda log: replace(log, score=log.score | {"seconds": 0.001}), "its score is"),
    "no seconds at all": (
        lambda log: replace(log, runs=[one | {"seconds": 0} for one in log.runs], score={}),
        "its runs have no time",
    ),
    "busy cores": (
        lambda log: replace(log, runs=[*log.runs[:-1], log.runs[-1] | {"others": 0.4}]),
        "other processes had 40% of the cores' time, and 10% is the most",
    ),
    "too few runs": (
        lambda log: replace(log, runs=log.runs[:2], score=score_of(log.runs[:2], count(log))),
        "2 repetitions",
    ),
    "fewer requests": (lambda log: shortened(log), "a repetition has 15 answers, and 16 requests"),
    "files that differ from the commit": (lambda log: replace(log, changed=True), "not those of commit 0123456789ab"),
    "no commit": (lambda log: replace(log, commit="unknown"), "not those of commit unknown"),
    "another version": (lambda log: replace(log, rules=VERSION + 1), "version 2 of the rules"),
    "another workload": (lambda log: replace(log, workload="0" * 64), "its workload has the hash 0000"),
    "another model": (lambda log: replace(log, model="0" * 64), "its model has the SHA-256 0000"),
    "four cores": (lambda log: replace(log, machine=MACHINE | {"cores": "4"}), "the process may use 4"),
    "another class": (lambda log: replace(log, category="gpu-1"), "class gpu-1 runs on cuda, and this ran on cpu"),
    "a better verdict": (
        lambda log: replace(log, verdict=log.verdict | {"likeliest": log.verdict["tokens"] - 20}),
        "its verdict is",
    ),
}


def count(log: Log) -> int:
    return sum(len(log.answers[name]) for name in log.runs[0]["hashes"])


def shortened(log: Log) -> Log:
    """The log without its last request; everything else adds up."""
    runs = [one | {"hashes": one["hashes"][:-1]} for one in log.runs]
    return replace(log, runs=runs, score=score_of(runs, sum(len(log.answers[name]) for name in runs[0]["hashes"])))


@pytest.mark.parametrize("name", EDITS)
def test_a_log_that_was_edited_and_sealed_again_is_found(name, log, tiny, tmp_path):
    edit, reason = EDITS[name]
    edit(log).write(tmp_path / "log.json")
    assert reason in " · ".join(verify(tmp_path / "log.json", tiny)[1])


def test_a_file_that_is_no_log_is_refused_in_one_line(log, tmp_path):
    file = tmp_path / "log.json"
    for content in ("", "[]", "{}", '{"seal": 1}', json.dumps({"seal": "", "rules": 1})):
        file.write_text(content)
        with pytest.raises(ConfigError, match="no log of a speedrun"):
            Log.read(file)
    replace(log, verdict={}).write(file)
    with pytest.raises(ConfigError, match="no log of a speedrun"):
        Log.read(file)


def test_verdicts_of_two_machines_may_differ_by_a_tie(log, tiny):
    nearly = log.verdict | {"likeliest": log.verdict["tokens"] - 1, "widest": 0.0001}
    assert faults(replace(log, verdict=nearly), tiny) == ""


# -- classes -----------------------------------------------------------------------------------------------------------

GPU = {"cores": "16", "device": "cuda", "gpus": 1}


@pytest.mark.parametrize(
    ("category", "machine", "reason"),
    [
        ("cpu-2", MACHINE, ""),
        ("cpu-2", MACHINE | {"cores": "1"}, ""),
        ("cpu-2", MACHINE | {"cores": "3"}, "taskset --cpu-list 0-1"),
        ("cpu-2", GPU, "runs on cpu"),
        ("gpu-1", GPU, ""),
        ("gpu-1", GPU | {"gpus": 2}, "CUDA_VISIBLE_DEVICES=0"),
        ("gpu-8", GPU, "there is no class 'gpu-8', only cpu-2, gpu-1"),
    ],
)
def test_a_machine_is_of_its_class_or_a_sentence_says_why_not(category, machine, reason):
    found = unfit(category, machine)
    assert (found == "") is (reason == "") and reason in found


def test_llama_cpp_reads_gguf_files_alone(tiny):
    with pytest.raises(ContenderFailed, match=r"llama\.cpp reads a \.gguf file"):
        LlamaCppContestant(tiny)


def test_the_time_of_other_processes_is_what_the_cores_did_beyond_our_own():
    before = Moment(cores=100.0, own=10.0)
    assert share(before, Moment(108.0, 16.0), seconds=5.0, cores=2) == pytest.approx(0.2)
    assert share(before, Moment(106.0, 16.1), seconds=5.0, cores=2) == 0.0  # the two clocks tick apart
    assert share(before, Moment(130.0, 16.0), seconds=5.0, cores=2) == 1.0


def test_work_of_a_child_is_our_own():
    before = Moment.now()
    code = "import time\nwhile time.process_time() < 0.4: pass\ninput()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        until = time.monotonic() + 30
        while Moment.now().own - before.own < 0.3 and time.monotonic() < until:
            time.sleep(0.05)
        after = Moment.now()
    finally:
        child.communicate(b"\n")
    assert after.own - before.own >= 0.3 and after.cores > before.cores


# -- the table ---------------------------------------------------------------------------------------------------------


def test_the_fastest_row_is_the_first_and_an_empty_class_says_so(log, tmp_path):
    slow = replace(log, runs=[one | {"seconds": 100.0} for one in log.runs], engine=log.engine | {"name": "slow"})
    slow = replace(slow, score=score_of(slow.runs, count(slow)))
    slow.write(tmp_path / table.NAME / "a.json")
    log.write(tmp_path / table.NAME / "b.json")
    text = block("speedrun", tmp_path, tmp_path / "page.md")
    assert text.index("| p06 |") < text.index("| slow |")
    assert f"**gpu-1**: {CLASSES['gpu-1'].title}. It has no rows." in text


def test_a_log_that_is_no_row_stops_the_report(log, tmp_path):
    replace(log, changed=True).write(tmp_path / table.NAME / "a.json")
    with pytest.raises(ConfigError, match=r"a\.json: the files that ran are not those"):
        table.parts(tmp_path, "")
    with pytest.raises(ConfigError, match="there is no class 'cpu-4'"):
        table.parts(tmp_path, "cpu-4")


def test_a_close_call_is_shown_in_the_row(log):
    apart = Verdict(475, 470, 0.04)
    shown = table.row(replace(log, verdict={"tokens": 475, "likeliest": 470, "widest": apart.widest, "wrong": ""}))
    assert "5 of 475, by 0.04" in shown
    assert f"0 of {log.verdict['tokens']}" in table.row(log)


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=() if file.stem == "cpu-2-final" else pytest.mark.stress) for file in LOGS],
    ids=lambda file: file.stem,
)
def test_the_committed_logs_are_right(file, capsys):
    assert main(["speedrun", "--verify", str(file)]) == 0
    assert f"{file}: fit for the table" in capsys.readouterr().out


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--verify", "a.json", "--phase", "p06"], "--verify reads logs and runs no engine"),
        (["--command", "./engine", "--phase", "p06"], "exclude each other"),
        (["--command", "./engine", "--peer", "llama.cpp"], "exclude each other"),
        (["--class", "cpu-2", "--device", "cuda"], "class cpu-2 runs on cpu, and --device is cuda"),
        (["--peer", "llama.cpp", "--timeout", "3"], "--timeout is for --command"),
    ],
)
def test_options_that_contradict_each_other_are_refused(words, reason, capsys):
    assert main(["speedrun", *words]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())
