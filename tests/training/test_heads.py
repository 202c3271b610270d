"""Training: what is learned is what is drafted, by a gradient that is the whole one's, and a seed decides the texts."""

import itertools
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gradus.attention.whole import WholeSequence
from gradus.config.options import FINAL
from gradus.errors import ConfigError
from gradus.loading import open_checkpoint
from gradus.loading.progress import Silent
from gradus.models import Model, create_model
from gradus.speculative.heads import HeadsShape, create_heads
from gradus.speculative.heads_drafter import draft_head
from gradus.text.llm import LLM
from gradus.training import __main__ as plain
from gradus.training.agreement import Places, agreement
from gradus.training.batches import Texts, batches
from gradus.training.heads import Recipe, begun, common_words, descend, embedding_scale, train_heads
from gradus.training.learning import DECAY, logits_of, loss_and_gradient, read
from gradus.training.writing import Conversation, Turns, unlooped, write
from tests.cli.conftest import gradus  # noqa: F401  # the command line, as a fixture
from tests.phases.conftest import FAMILIES, MIXED, build_engine, tiny_model
from tests.phases.drive import run
from tests.phases.test_paged_schedules import SHAPE, ask

K = 3
CPU = torch.device("cpu")
KINDS = ("medusa", "eagle")
TINY = ["random:tiny-llama", "--device", "cpu", "--dtype", "float32", "--tokens", "200", "--passes", "1"]


def heads_for(kind: str, std: float = 0.1):
    shape = HeadsShape(kind, K, tiny_model(SHAPE).config.hidden_size, 96, tiny_model(SHAPE).config.vocab_size)
    heads = create_heads(shape, dtype=torch.float32, device="cpu")
    generator = torch.Generator().manual_seed(3)
    for name, parameter in heads.named_parameters():
        parameter.data.normal_(0, std, generator=generator).add_(1.0 if "norm" in name else 0.0)
    return heads


def conversations(count: int = 24) -> list[Conversation]:
    """Return the tiny model's greedy answers."""
    prompts = {f"r{n}": (40 + n, 7, 60 + 3 * n) for n in range(count)}
    done = run(build_engine(FINAL, SHAPE), [ask(name, prompt, max_tokens=24) for name, prompt in prompts.items()])
    return [
        Conversation(n, (*prompt, *done[name, 0].tokens), len(prompt), True)
        for n, (name, prompt) in enumerate(prompts.items())
    ]


@pytest.mark.parametrize("shape", [*FAMILIES, *MIXED])
def test_texts_side_by_side_are_read_as_each_alone(shape):
    model = tiny_model(shape)
    spoken = [Conversation(n, tuple(range(20, 20 + length)), 2, True) for n, length in enumerate((9, 30, 17))]
    hidden, embedded = read(model, Texts.of(spoken, CPU))
    for row, one in enumerate(spoken):
        tokens, positions = torch.tensor(one.tokens), torch.arange(len(one.tokens))
        alone = model(tokens, positions, WholeSequence(model.config))
        torch.testing.assert_close(hidden[row, : len(tokens)], alone, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(embedded[row, : len(tokens)], model.embed(tokens, positions))


def test_drafts_that_count_are_those_of_the_answer():
    """Tokens 0 … 8, the answer from 4 on. At place t the newest token is t + 1, and the first draft is t + 2."""
    texts = Texts.of([Conversation(0, tuple(range(9)), 4, True), Conversation(1, tuple(range(12)), 2, True)], CPU)
    counts = texts.counts(K)
    assert counts.shape == (2, 9, K)
    assert [row.tolist().count(True) for row in counts[0]] == [0, 0, 0, 3, 3, 2, 1, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_all_places_at_once_are_what_is_drafted_at_each(kind):
    model, heads = tiny_model(SHAPE), heads_for(kind)
    tokens = torch.arange(30, 60)
    texts = Texts.of([Conversation(0, tuple(tokens[:20].tolist()), 1, True)], CPU)
    hidden, embedded = read(model, texts)
    features = heads.unrolled(hidden, embedded)[0]
    assert features.shape == (20 - K, K, model.config.hidden_size)
    for place in range(len(features)):
        seen = []

        def draw(found, first, seen=seen):
            seen.append(found[0])

        def join(states, after, place=place):
            newest = tokens[place + 1 + after : place + 2 + after]  # what the text says
            return torch.cat([states, model.embed(newest, newest)], dim=-1)

        heads.draft(join(hidden[0, place : place + 1], 0), K, draw, join)
        torch.testing.assert_close(features[place], torch.cat(seen))


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_in_pieces_is_that_of_all_logits_at_once(kind, monkeypatch):
    monkeypatch.setattr("gradus.training.learning.LOGITS", 1)  # a sequence at a time
    model, heads = tiny_model(SHAPE), heads_for(kind)
    head, texts = draft_head(model, 200), Texts.of(conversations(5), CPU)
    hidden, embedded = read(model, texts)
    features = heads.unrolled(hidden, embedded).detach().requires_grad_()
    counts = texts.counts(K)
    found, gradient = loss_and_gradient(features, hidden, counts, head)
    expected, weights = logits_of(head, hidden).softmax(-1), [DECAY**i for i in range(K)]
    loss = 0.0
    for i, weight in enumerate(weights):
        logs = logits_of(head, features[:, :, i]).log_softmax(-1)
        losses = -(expected[:, i + 1 : i + 1 + features.shape[1]] * logs).sum(-1)[counts[..., i]]
        loss = loss + weight / sum(weights) * losses.mean()
    (whole,) = torch.autograd.grad(loss, features)
    assert found == pytest.approx(float(loss.detach()), rel=1e-5)
    torch.testing.assert_close(gradient, whole, atol=1e-7, rtol=1e-4)


def narrow_model() -> Model:
    model = create_model(tiny_model(SHAPE).config, dtype=torch.bfloat16)
    model.load_state_dict(tiny_model(SHAPE).state_dict())
    return model


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        pytest.param("medusa", narrow_model(), id="medusa-bfloat16"),
        pytest.param("eagle", tiny_model(SHAPE), id="eagle-float32"),
        pytest.param("medusa", tiny_model(SHAPE), id="medusa-float32", marks=pytest.mark.stress),
        pytest.param("eagle", narrow_model(), id="eagle-bfloat16", marks=pytest.mark.stress),
    ],
)
def test_heads_learn_to_say_what_the_model_says(kind, model):
    spoken = conversations(20)
    train = batches(spoken, 256, K)
    shape = HeadsShape(kind, K, model.config.hidden_size, 96, model.config.vocab_size)
    heads, head = begun(shape, model, train[0], seed=1), draft_head(model, shape.vocabulary)
    before = agreement(model, heads, head, train, K)
    recipe, scale = Recipe(kind, K, passes=10, rate=1e-2), embedding_scale(model)
    steps = descend(model, heads, head, train, recipe, Silent(), float("inf"), scale)
    heads.layer.fuse.weight[:, model.config.hidden_size :] *= scale
    after = agreement(model, heads, head, train, K)
    assert steps == 10 * len(train) and heads.layer.fuse.weight.dtype == torch.float32
    assert after.right[0] > before.right[0] + 0.05 and after.tokens_per_step > before.tokens_per_step + 0.1


def test_agreement_counts_what_a_draft_by_hand_would():
    model, heads, spoken = tiny_model(SHAPE), heads_for("eagle", 0.3), conversations(3)
    head = draft_head(model, model.config.vocab_size)
    found = agreement(model, heads, head, [spoken], K)
    right, places = 0, 0
    for one in spoken:
        hidden, embedded = read(model, Texts.of([one], CPU))
        features = heads.unrolled(hidden, embedded)[0]
        for place in range(one.start - 1, len(one.tokens) - K - 1):
            places += 1
            right += int(logits_of(head, features[place, :1]).argmax()) == one.tokens[place + 2]
    assert found.right[0] == pytest.approx(right / places)
    assert all(stands <= right for stands, right in zip(found.stands, found.right, strict=True))


def test_steps_begin_where_the_step_before_ended():
    said = torch.arange(9).unfold(0, 2, 1)
    drafts = said.clone()
    drafts[0, 1] = drafts[3, 0] = 99  # at place 3 a second draft that is right does not stand
    drafts[4] = -1
    verified, stood = Places(drafts, said).in_steps()  # at places 0, 2, 5; with the one at 8 the text would end
    assert (verified.tolist(), stood.tolist()) == ([3, 3], [3, 2])
    drafts[2, 1] = 99  # now at 0, 2, 4, 5
    verified, stood = Places(drafts, said).in_steps()
    assert (verified.tolist(), stood.tolist()) == ([3, 3], [3, 1])


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ([1, 2, 3] * 2, 6),  # too short to judge
        ([5, 6, *[7] * 30], 3),
        ([5, 6, *[7, 8] * 20, 7], 4),
        (list(range(40)), 40),
    ],
)
def test_an_answer_that_only_repeats_itself_is_cut_after_the_first_time(said, kept):
    assert unlooped(said) == said[:kept]


def test_heads_draft_the_first_tokens_that_cover_what_is_said():
    said = [Conversation(0, (9000, *[5] * 960, *[2000] * 30, *[40_000] * 10), 1, True)]
    assert common_words(said, 49_152) == 2048  # 99 % of the tokens are below
    assert common_words(said, 2_500) == 2_500


def test_a_turn_is_what_the_template_has_around_it():
    tokenizer = open_checkpoint("random:tiny-llama").tokenizer
    turns = Turns.of(tokenizer, None)
    assert bytes(turns.before) == b"user: " and bytes(turns.between) == b"\nassistant:"
    assert Turns.of(None, 3) == Turns((3,), ())


# -- the whole ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_trains_heads_that_the_engine_takes(gradus, tmp_path, kind):  # noqa: F811
    out = tmp_path / "heads"
    done = gradus("train-heads", *TINY, "--kind", kind, "--drafts", "3", "--out", str(out))
    assert done.code == 0, done.err
    assert f"{kind} heads for random:tiny-llama" in done.out and "held out, by position: right " in done.out
    config = json.loads((out / "config.json").read_text())
    assert config["shape"]["kind"] == kind and len(config["trained"]["right"]) == 3
    said = gradus(
        "generate", "abcabcabc", "--model", "random:tiny-llama", "--device", "cpu", "--dtype", "float32",
        "--max-tokens", "8", "--speculate", f"heads:{out}",
    )  # fmt: skip
    alone = gradus(
        "generate", "abcabcabc", "--model", "random:tiny-llama", "--device", "cpu", "--dtype", "float32",
        "--max-tokens", "8",
    )  # fmt: skip
    assert said.code == 0 and said.out == alone.out


def test_the_same_seed_gives_the_same_heads_and_another_gives_others(tmp_path):
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        assert plain.main([*TINY, "--kind", "eagle", "--seed", str(seed), "--out", str(tmp_path / name)]) == 0
    first, again, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "again", "other"))
    assert first == again != other


def test_the_plain_front_end_needs_no_docstring(monkeypatch, capsys):
    """`python -OO` strips them."""
    monkeypatch.setattr(plain, "__doc__", None)
    with pytest.raises(SystemExit) as ending:
        plain.main(["--help"])
    assert ending.value.code == 0 and "--out" in capsys.readouterr().out


def test_time_that_runs_out_ends_training(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr("gradus.training.heads.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    model, train = tiny_model(SHAPE), batches(conversations(6), 256, K)
    shape = HeadsShape("medusa", K, model.config.hidden_size, 96, model.config.vocab_size)
    heads, head = begun(shape, model, train[0], seed=1), draft_head(model, shape.vocabulary)
    recipe = Recipe("medusa", K, passes=1000)
    assert descend(model, heads, head, train, recipe, Silent(), 10, 1.0) == 9
    assert descend(model, heads, head, train, recipe, Silent(), 10, 1.0) == 0


def test_time_that_runs_out_ends_writing():
    llm = LLM("random:tiny-llama", device="cpu", dtype="float32", max_sequences=2)
    assert write(llm, 10**6, 0, Silent(), until=time.monotonic() - 1) == []
    begin = time.monotonic()
    write(llm, 10**6, 0, Silent(), until=begin + 0.5)
    while llm.core.has_work:  # a step that was under way
        llm.core.step()
    assert llm.metrics().active == llm.metrics().waiting == 0
    llm.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "tree"}, "kind must be medusa or eagle, got 'tree'"),
        ({"drafts": 17}, "drafts must be between 1 and 16, got 17"),
        ({"tokens": 0}, "tokens must be between 200 and"),
        ({"minutes": 0.0}, "minutes must be more than 0, got 0"),
    ],
)
def test_a_recipe_that_cannot_be_is_one_line(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(Recipe(), **change)


def test_a_folder_that_is_there_is_not_written_to(tmp_path):
    (tmp_path / "note").write_text("mine")
    with pytest.raises(ConfigError, match="is there already: give another folder"):
        train_heads(
            open_checkpoint("random:tiny-llama"), tmp_path, Recipe(), device="cpu", dtype="float32", progress=Silent()
        )
