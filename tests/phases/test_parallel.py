"""p12's ranks compute together what one process does. Ranks are threads here; once they are processes."""

import re
import subprocess
import sys

import pytest
import torch

from gradus import phases
from gradus.engine.request import Request, SamplingParams
from gradus.errors import ConfigError
from gradus.models.shapes import SHAPES
from phases.p12_parallelism import process
from phases.p12_parallelism.exchange import Exchange
from phases.p12_parallelism.linear import all_reduce
from phases.p12_parallelism.model import cut, sizes
from phases.p12_parallelism.place import Place
from phases.p12_parallelism.process import Job, launch
from phases.p12_parallelism.rank import answers, engines
from phases.p12_parallelism.schedule import timetable
from phases.p12_parallelism.threads import on_all_ranks
from tests.phases.conftest import build_engine, limits_of, next_logits, tiny_model
from tests.phases.drive import run
from tests.repository.test_layout import ROOT

PLACES = [(2, 1, 1), (4, 1, 1), (1, 2, 1), (1, 2, 2), (1, 3, 3), (2, 2, 2), (2, 2, 3)]  # parts, stages, micro-batches


def requests(shape):
    """Four, of different lengths, two of which draw at random."""
    limits = limits_of(shape)
    params = [SamplingParams(max_tokens=5 + number, temperature=0.7 * (number % 2), seed=number) for number in range(4)]
    return [
        Request.create(str(number), [5 + number, 9, 3 * number + 1], each, limits) for number, each in enumerate(params)
    ]


def tokens_of_one_process(shape, phase="p00"):
    return {name: list(ending.tokens) for (name, _), ending in run(build_engine(phase, shape), requests(shape)).items()}


@pytest.mark.parametrize(
    ("shape", "places"),
    [
        *(("tiny-llama", each) for each in PLACES),
        *((shape, (2, 2, 2)) for shape in ("tiny-gpt2", "tiny-gemma3", "tiny-phi3", "tiny-granite")),
        ("tiny-smollm3", (1, 4, 2)),  # two stages turn no queries, and so have no rotary table
        ("tiny-olmo3", (1, 2, 2)),
        ("tiny-gpt-oss", (1, 2, 2)),
        ("tiny-mixtral", (1, 4, 2)),
    ],
)
def test_all_ranks_have_the_tokens_of_p00(shape, places):
    parts, stages, micro_batches = places
    wanted, model = tokens_of_one_process(shape), tiny_model(shape)
    found = on_all_ranks(
        lambda exchange: answers(engines(model, exchange, "p03", micro_batches), requests(shape)), parts, stages
    )
    assert found == [wanted] * (parts * stages)


@pytest.mark.parametrize(("parts", "stages", "micro_batches"), [(2, 1, 1), (4, 1, 1), (2, 2, 2)])
def test_ranks_that_exchange_candidates_draw_the_same_tokens(parts, stages, micro_batches):
    """Two of the four requests are greedy, and two draw at random."""
    model, sizes = tiny_model("tiny-llama"), set()

    class Notes(Exchange):
        def gather(self, x):
            sizes.add(x.nbytes)
            return super().gather(x)

    def compute(exchange):
        return answers(engines(model, exchange, "p03", micro_batches, few_bytes=True), requests("tiny-llama"))

    found = on_all_ranks(compute, parts, stages, Notes)
    assert found == [tokens_of_one_process("tiny-llama")] * (parts * stages)
    assert min(sizes) == 24, "a row's candidate: score, sum and id"
    assert all(size % 24 == 0 or size % 256 == 0 for size in sizes), "candidates and hidden states, no row of scores"


def test_a_request_that_needs_a_whole_row_is_refused_before_any_runs():
    asked = Request.create("a", [1], SamplingParams(max_tokens=2, top_p=0.5), limits_of("tiny-llama"))
    with pytest.raises(ConfigError, match=r"only temperature and seed can be asked for: leave --few-bytes out"):
        on_all_ranks(lambda exchange: answers(engines(tiny_model("tiny-llama"), exchange, few_bytes=True), [asked]), 2)


@pytest.mark.parametrize("phase", ["p00", "p01", "p04", "p05", "p06"])
def test_the_engine_of_any_phase_with_a_plain_runner_can_be_cut(phase):
    model = tiny_model("tiny-llama")
    found = on_all_ranks(lambda exchange: answers(engines(model, exchange, phase, 2), requests("tiny-llama")), 1, 2)
    assert found == [tokens_of_one_process("tiny-llama")] * 2


@pytest.mark.parametrize(
    ("phase", "line"), [("p02", "p02 has a runner of its own"), ("p07", "p07 makes a model of its own from each part")]
)
def test_a_phase_that_would_not_run_the_part_as_it_is_is_refused(phase, line):
    with pytest.raises(ConfigError, match=f"^{line}: choose p00, p01, p03, p04, p05 or p06$"):
        on_all_ranks(lambda exchange: engines(tiny_model("tiny-llama"), exchange, phase))


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (SHAPES["tiny-mixtral"], "p12 cuts every matrix, and the experts of mixtral stay whole: divide its layers"),
        (SHAPES["tiny-olmo2"], "the heads of olmo2 share a norm, so p12 can divide only its layers (--stages)"),
        (
            SHAPES["tiny-gemma4"],
            "p12 divides layers that are alike, and those of gemma4 differ: see src/gradus/parallel",
        ),
        (
            SHAPES["tiny-gpt-oss"],
            "p12 cuts every matrix, and the experts of gpt_oss stay whole: divide its layers alone (--stages)",
        ),
    ],
)
def test_a_model_whose_parts_would_need_each_other_is_refused(config, line):
    with pytest.raises(ConfigError, match=re.escape(line)):
        sizes(config, Place(0, parts=2))


def test_all_ranks_have_the_same_bits_and_one_process_nearly_so():
    model, tokens = tiny_model("tiny-llama"), [3, 1, 4, 1, 5, 9, 2, 6]
    logits = on_all_ranks(lambda exchange: next_logits(cut(model, exchange), tokens), parts=4)
    assert all(torch.equal(logits[0], other) for other in logits[1:])
    torch.testing.assert_close(logits[0], next_logits(model, tokens), atol=1e-4, rtol=1e-4)


def test_parts_together_have_each_weight_of_the_matrices_once():
    """With four ranks and two key-value heads, two ranks hold each of these."""
    model = tiny_model("tiny-llama")
    config = model.config
    for parts, copies in ((2, 1), (4, 2)):
        found = on_all_ranks(lambda exchange: cut(model, exchange), parts)
        kv_rows = sum(part.layers[0].qkv.weight.shape[0] for part in found) - config.q_width
        assert kv_rows == 2 * config.kv_width * copies
        for name in ("output", "gate_up", "down"):
            counts = [part.layers[0].get_submodule(name).weight.numel() for part in found]
            assert sum(counts) == model.layers[0].get_submodule(name).weight.numel()
        for name in ("embedding", "head"):
            assert sum(len(part.get_submodule(name).weight) for part in found) == config.vocab_size


def test_tied_matrices_are_one_where_a_rank_has_both():
    model = tiny_model("tiny-gemma3")
    assert model.config.tie_embeddings
    for parts, stages in ((2, 1), (1, 2)):
        first, *_ = on_all_ranks(lambda exchange: cut(model, exchange), parts, stages)
        assert (first.embedding.weight is first.head.weight) == (stages == 1)


def test_a_vocabulary_that_does_not_divide_is_cut_all_the_same():
    """Of 320 tokens three ranks have 107, 107 and 106."""
    from phases.p12_parallelism.vocabulary import EmbeddingPart, HeadPart, tokens_of

    model, x = tiny_model("tiny-llama"), torch.randn(2, 64)
    ids = torch.tensor([0, 106, 107, 213, 214, 319])

    def compute(exchange):
        tokens = tokens_of(320, exchange.place.part, 3)
        embedding = EmbeddingPart(model.embedding, tokens, exchange)
        return len(embedding.weight), embedding(ids), HeadPart(model.head, tokens, exchange)(x)

    found = on_all_ranks(torch.inference_mode()(compute), 3)
    assert [rows for rows, _, _ in found] == [107, 107, 106]
    for _, embedded, scores in found:
        assert torch.equal(embedded, model.embedding(ids))
        torch.testing.assert_close(scores, model.head(x))


def test_the_first_stage_embeds_and_the_last_has_the_head():
    first, middle, last = on_all_ranks(lambda exchange: cut(tiny_model("tiny-llama"), exchange), stages=3)
    assert [len(part.embedding.weight) for part in (first, middle, last)] == [320, 0, 0]
    assert [len(part.head.weight) for part in (first, middle, last)] == [0, 0, 320]
    assert [part.config.num_layers for part in (first, middle, last)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("parts", "stages", "says"),
    [(3, 1, "160 features cannot be divided among 3"), (1, 5, "4 layers cannot be divided among 5 stages")],
)
def test_what_does_not_divide_is_refused(parts, stages, says):
    with pytest.raises(ConfigError, match=says):
        on_all_ranks(lambda exchange: cut(tiny_model("tiny-llama"), exchange), parts, stages)


def test_stages_divide_all_layers_in_order():
    for count in range(1, 9):
        for stages in range(1, count + 1):
            parts = [Place(rank, 1, stages).layers(count) for rank in range(stages)]
            assert [layer for part in parts for layer in part] == list(range(count))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_place_is_a_part_of_a_stage():
    places = [Place(rank, parts=2, stages=3) for rank in range(6)]
    assert [(place.stage, place.part, place.last) for place in places[2:5]] == [
        (1, 0, False),
        (1, 1, False),
        (2, 0, True),
    ]
    assert places[3].peer(0) == 1 and places[3].peer(2) == 5 and places[0].count == 6


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_stages_run_micro_batches_in_the_order_of_the_timetable(micro_batches):
    order: list[list[int]] = [[], []]

    def compute(exchange):
        made = engines(tiny_model("tiny-llama"), exchange, "p03", micro_batches)
        for number, engine in enumerate(made):
            plain = engine.runner.run
            engine.runner.run = lambda plan, plain=plain, number=number: (
                order[exchange.place.stage].append(number) or plain(plan)
            )
        limits = limits_of("tiny-llama")
        params = SamplingParams(max_tokens=3)
        answers(made, [Request.create(str(n), [n + 1], params, limits) for n in range(micro_batches)])

    on_all_ranks(compute, stages=2)
    wanted = [[each for each in row if each is not None] for row in timetable(2, micro_batches, rounds=3)]
    assert order == wanted


def test_ranks_that_lose_one_fail_at_once_with_its_error():
    def compute(exchange):
        if exchange.place.rank == 1:
            raise ValueError("rank 1 is broken")
        return all_reduce(exchange, torch.ones(2))

    with pytest.raises(ValueError, match="rank 1 is broken"):
        on_all_ranks(compute, 2)


# -- processes ---------------------------------------------------------------------------------------------------------


def test_ranks_are_processes_that_run_a_student_s_functions(tmp_path):
    source = (ROOT / "phases/p12_parallelism/linear.py").read_text(encoding="utf-8")
    (tmp_path / "linear.py").write_text(
        source.replace("return total.to(x.dtype)", "return 0 * total"), encoding="utf-8"
    )
    prompt = (5, 9, 17)
    found = launch(Job("random:tiny-llama", (prompt, (1, 2)), parts=2, max_tokens=4, impl=str(tmp_path)))
    assert len(found) == 2 and found[0]["answers"] == found[1]["answers"] == [[0] * 4] * 2  # all logits are zeros
    assert (found[0]["layers"], found[0]["heads"], found[0]["kv_heads"]) == (4, 2, 1)


def test_a_rank_s_complaint_ends_the_job_with_one_line(monkeypatch):
    def start(job):
        code = "import sys; print('noise\\nthis does not divide', file=sys.stderr); sys.exit(2)"
        lost = "import sys; print('lost rank 1', file=sys.stderr); sys.exit(1)"
        code = code if job.rank else lost if job.parts == 2 else "import os; os._exit(9)"
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    monkeypatch.setattr(process, "start", start)
    with pytest.raises(ConfigError, match=r"^this does not divide$"):
        launch(Job("random:tiny-llama", ((1,),), parts=2))
    with pytest.raises(ConfigError, match=r"^a rank has died, and said nothing$"):
        launch(Job("random:tiny-llama", ((1,),), parts=1))


def test_the_modules_of_a_student_s_phase_are_theirs(tmp_path):
    source = (ROOT / "phases/p12_parallelism/heads.py").read_text(encoding="utf-8")
    (tmp_path / "heads.py").write_text(source, encoding="utf-8")
    yours = phases.solution("p12", tmp_path)
    assert yours.note == "your p12: heads.py; ours: linear.py, draw.py, schedule.py"
    assert yours.module("model").cut_qkv.__code__.co_filename == str(tmp_path / "heads.py")
    assert yours.module("exchange").Exchange is not Exchange
