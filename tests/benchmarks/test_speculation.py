"""The measuring of drafters, rehearsed on a tiny model: every cell, and a report that says what the samples say."""

import re
from dataclasses import replace
from itertools import product

import pytest
import torch

from benchmarks import speculation
from gradus.bench import command, report
from gradus.bench.measure import fingerprint
from gradus.bench.record import plots, results
from gradus.bench.record.results import Cell, Entry, Results, Run
from gradus.bench.studies import speculation_report
from gradus.bench.studies.speculation_report import NONE, VLLM, VLLM_NGRAM, ratios, stood, tokens_per_step
from gradus.config.options import USUAL_DRAFTS
from gradus.errors import ConfigError
from gradus.loading import load_model, open_checkpoint
from gradus.text.llm import LLM
from gradus.training.agreement import Agreement
from tests.bench.conftest import RATES
from tests.speculative.heads import heads_of


@pytest.fixture
def random_model():
    return load_model(open_checkpoint("random:tiny-llama"), dtype=torch.float32, device="cpu")


def test_a_quick_run_measures_every_cell_and_writes_the_report(tmp_path, monkeypatch, random_model, capsys):
    monkeypatch.setattr(fingerprint, "rates", lambda device, quick=False: RATES)
    heads = [heads_of(random_model, tmp_path / kind, kind).removeprefix("heads:") for kind in ("medusa", "eagle")]
    asked = ["--quick", "--model", "random:tiny-llama", "--device", "cpu", "--dtype", "float32", "--rounds", "1"]
    asked += ["--heads", heads[0], "--heads", heads[1], "--draft", "random:tiny-llama", "--out", str(tmp_path / "r")]
    asked += ["--draft-quantize", "int8", "--draft-quantize", "int4"]
    assert speculation.main(asked) == 0, capsys.readouterr().err
    folder = tmp_path / "r" / "cpu" / "speculation"
    (run,) = results.read(folder / "results.json").runs
    assert [(cell.table, cell.batch) for cell in run.cells] == [(s.table, s.batch) for s in speculation.QUICK]
    for cell in run.cells:
        assert [entry.contender for entry in cell.entries] == [
            NONE, "ngram", "medusa", "eagle", "draft model", "draft model, int8", "draft model, int4",
        ]  # fmt: skip
        assert all(len(entry.samples) == 1 and entry.samples[0]["same"] == 1 for entry in cell.entries)
        assert all("stands" in cell.entry(name).prediction for name in ("ngram", "medusa", "eagle"))
    for cell, name in product(run.cells, ("ngram", "medusa", "eagle")):
        found = cell.entry(name).prediction["every step"]
        for count in ("drafted", "accepted"):
            # near an answer's end an engine verifies fewer drafts than the prediction needs
            beyond = [mine - theirs for mine, theirs in zip(found[count], found["predicted"][count], strict=True)]
            assert all(-cell.batch <= more <= 8 * cell.batch for more in beyond), (cell.table, name, count, found)
    text = (folder / "report.md").read_text()
    assert "| Chat requests | medusa |" in text.split("*Drafts in every step*: ")[1]
    assert "--draft MODEL --draft-quantize int4 --draft-quantize int8" in text and "| draft model, int8 |" in text
    assert "not to be quoted" in text and "Where it loses" in text and "| 2 | medusa |" in text
    assert {file.name for file in folder.iterdir()} == {"report.md", "results.json"}, "one size makes no curve"
    assert command.report(tmp_path / "r", check=True) == 0


STAND_IN = """
import json, sys
asked = json.load(open(sys.argv[1]))
sys.path[:] = [each for each in sys.path if each]
import transformers
weights = transformers.LlamaForCausalLM.from_pretrained(asked["config"]).state_dict()
assert sum(value.abs().sum() for value in weights.values()) > 0 and asked["load_format"] == "auto"
def sample(case):
    return {"seconds": 0.25 if asked["vllm_options"] else 0.5, "output_tokens": sum(case["max_tokens"])}
cases = {case["label"]: {"samples": [sample(case)] * asked["repeats"]} for case in asked["cases"]}
assert all(len(case["prompts"]) >= case["at_once"] for case in asked["cases"])
json.dump({"version": "1.2.3", "cases": cases}, open(sys.argv[2], "w"))
"""


@pytest.mark.stress
def test_vllm_gets_the_same_prompts_and_weights_and_has_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fingerprint, "rates", lambda device, quick=False: RATES)
    monkeypatch.setattr(speculation, "VLLM_BLOCK", tmp_path / "stand_in.py")
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    asked = ["--quick", "--model", "random:tiny-llama", "--device", "cpu", "--dtype", "float32", "--rounds", "1"]
    asked += ["--texts", "copy", "--texts", "chat"]
    assert speculation.main([*asked, "--vllm", str(tmp_path), "--out", str(tmp_path / "r")]) == 0
    folder = tmp_path / "r" / "cpu" / "speculation"
    (run,) = results.read(folder / "results.json").runs
    copied, chat = run.cells
    (theirs,) = copied.entry(VLLM_NGRAM).samples
    assert theirs["output_tokens"] == copied.workload["output_tokens"], capsys.readouterr().out
    assert chat.entry(VLLM) is None and run.fingerprint["versions"]["vllm"] == "1.2.3"
    rate = theirs["output_tokens"] / theirs["seconds"]
    text = (folder / "report.md").read_text()
    assert "Beside vLLM 1.2.3" in text and f"| {rate / 2:.3g} | {rate:.3g} |" in text
    assert "*vllm" not in text, "it is none of our drafters"
    assert command.report(tmp_path / "r", check=True) == 0

    assert "the same prompts within the same hour" in text
    run.settings["vllm at"] = "0123456789abcdef"
    results.update(tmp_path / "r", "cpu", speculation.NAME, run)
    command.report(tmp_path / "r")
    assert "the same prompts in the run of commit 0123456, " in (folder / "report.md").read_text()


def test_a_scheme_without_a_draft_model_is_one_line(tmp_path, capsys):
    asked = ["--quick", "--model", "random:tiny-llama", "--device", "cpu", "--out", str(tmp_path)]
    assert speculation.main([*asked, "--draft-quantize", "int8"]) == 2
    assert capsys.readouterr().err == (
        "speculation: --draft-quantize does nothing without --draft: name a draft model, or leave it out\n"
    )


def test_heads_of_another_model_are_one_line(tmp_path, random_model, capsys):
    heads = heads_of(random_model, tmp_path, "medusa").removeprefix("heads:")
    asked = ["--quick", "--model", "random:tiny-gpt2", "--device", "cpu", "--heads", heads, "--out", str(tmp_path)]
    assert speculation.main(asked) == 2
    assert "has heads of another model (llama" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "count"), [("copy", 16), ("chat", 32), ("code", 32), ("open", 64)])
def test_there_are_as_many_prompts_as_the_sizes_need_and_none_twice(name, count):
    texts = speculation.texts(name)
    assert len(texts) == len(set(texts)) == count and all(len(text) > 15 for text in texts)


@pytest.fixture(scope="module")
def real_model():
    return LLM("smollm2-135m", device="cpu", max_sequences=8, context_length=640, switch_off=("prefix_cache",))


def answered(llm: LLM, name: str) -> tuple[list[list[int]], list[list[int]]]:
    """Sixteen prompts of a file, and their answers, as the benchmark has them."""
    prompts = [llm.chat_prompt([{"role": "user", "content": text}]) for text in speculation.texts(name)[:16]]
    return prompts, speculation.served(llm, prompts, 8, 160)[1]


def copied(prompt: list[int], answer: list[int], run: int = 8) -> float:
    """Return the share of the answer that lies in runs of `run` tokens that also occur in the prompt."""
    known = {tuple(prompt[start : start + run]) for start in range(len(prompt) - run + 1)}
    places = {
        place
        for start in range(len(answer) - run + 1)
        if tuple(answer[start : start + run]) in known
        for place in range(start, start + run)
    }
    return len(places) / len(answer)


@pytest.mark.stress
@pytest.mark.weights
@pytest.mark.parametrize("name", ["copy", "chat", "code", "open"])
def test_texts_to_be_copied_are_copied_and_others_are_not(real_model, name):
    prompts, answers = answered(real_model, name)
    shares = [copied(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    stands = Agreement.of(speculation.ngram_drafts(prompts, answers), USUAL_DRAFTS).stands[0]
    mean = sum(shares) / len(shares)
    if name == "copy":
        assert mean > 0.9 and min(shares) > 0.75 and stands > 0.9, [round(share, 2) for share in shares]
    else:
        assert mean < 0.25 and stands < 0.4  # a function begins with the head that is asked for


def found(seconds: float = 0.5, batches: tuple[int, ...] = (1, 8)) -> Results:
    """Two rounds: without drafts a second each; n-grams half of it, two tokens per step, of 100 drafts 60 and 30."""
    told = {"steps": 50, "tokens": 100, "drafted": [100, 100, 0], "accepted": [60, 30, 0]}
    plain = [{"seconds": 1.0, "output_tokens": 100} for _ in range(2)]
    drafted = [{"seconds": seconds, "output_tokens": 100, "same": 0.5, "speculation": told} for _ in range(2)]
    entries = [Entry(NONE, samples=plain), Entry("ngram", {"stands": [0.7, 0.2]}, drafted)]
    work = {"what": "2 prompts", "requests": 2, "prompt_tokens": 4, "output_tokens": 100}
    cells = [Cell("open", str(batch), batch, batch, work, entries) for batch in batches]
    settings = {"quick": False, "commit": "abc"}
    machine = {"rates": RATES, "versions": {}}
    return Results("h200", "speculation", [Run("m", "bfloat16", "cuda", machine, settings, cells)])


def test_numbers_follow_from_the_samples():
    cell = found().runs[0].cells[0]
    assert ratios(cell, "ngram") == [2.0, 2.0]
    assert tokens_per_step(cell.entry("ngram")) == 2 and tokens_per_step(cell.entry(NONE)) is None
    assert stood(cell.entry("ngram")) == [0.6, 0.3]


def test_the_report_names_what_is_slower():
    text = "\n".join(part for part in speculation_report.STUDY.report(found()) if isinstance(part, str))
    assert "No drafter is below 0.99 times" in text
    text = "\n".join(part for part in speculation_report.STUDY.report(found(1.25)) if isinstance(part, str))
    assert "*ngram* 0.80× (open, batch 1)" in text


def test_the_tables_show_acceptance_beside_agreement():
    cells = found().runs[0].cells
    _, rows = speculation_report.drafts_table(cells)
    assert rows[0] == ["1", "ngram", "2", "60 % (70 %), 30 % (20 %)"]
    _, rows = speculation_report.rates_table(cells)
    assert rows[1][:4] == ["1", "ngram", "200", "2.00×"] and rows[1][-1] == "50 %"


def test_the_report_shows_how_far_acceptance_is_from_what_was_predicted():
    measured = found(batches=(1,))
    told = {
        "drafted": [100, 80, 0],
        "accepted": [60, 20, 0],
        "predicted": {"drafted": [90, 80, 2], "accepted": [63, 20, 1]},
    }
    measured.runs[0].cells[0].entry("ngram").prediction["every step"] = told
    *_, (header, rows) = (part for part in speculation_report.STUDY.report(measured) if not isinstance(part, str))
    assert header[-1] == "apart at most"
    assert rows == [["Open questions", "ngram", "60 % (70 %), 25 % (25 %)", "0.100"]]


def test_the_figure_has_speed_and_acceptance_of_every_drafter():
    assert not list(speculation_report.STUDY.figures(found(), "NVIDIA H200")), "two sizes make no curve"
    figures = dict(speculation_report.STUDY.figures(found(batches=(1, 8, 32)), "NVIDIA H200"))
    assert [*figures] == ["ngram.svg", "open.svg", "open-steps.svg"]
    assert [[one.name for one in picture.series] for picture in figures.values()] == [
        ["Open questions"], ["ngram"], ["ngram"],
    ]  # fmt: skip
    assert figures["open.svg"].series[0].y == figures["ngram.svg"].series[0].y == [2.0] * 3
    assert "Open questions" in plots.draw(figures["ngram.svg"])


def test_a_drafter_has_the_same_color_on_all_hardware():
    """Lines get colors in their order, and runs name drafters in different orders."""
    measured = found(batches=(1, 8, 32))
    for cell in measured.runs[0].cells:
        ngram = cell.entry("ngram")
        cell.entries[:] = [replace(ngram, contender=name) for name in ("eagle", "medusa", "ngram")] + [cell.entry(NONE)]
    pictures = dict(speculation_report.STUDY.figures(measured, "NVIDIA H200"))
    assert [one.name for one in pictures["open.svg"].series] == ["ngram", "medusa", "eagle"]


def test_a_chart_that_a_study_does_not_have_is_refused(tmp_path):
    results.write(results.path(tmp_path, "h200", "speculation"), found(batches=(1, 8, 32)))
    page = tmp_path / "README.md"
    page.write_text("<!-- results:begin speculation/closed/chart -->\n<!-- results:end -->\n")
    with pytest.raises(ConfigError, match="no chart 'closed', only ngram, open, open-steps"):
        [*report.outdated_pages(tmp_path, [page])]


def test_a_page_shows_the_chart_alone_and_its_sentences_quote_the_samples(tmp_path):
    results.write(results.path(tmp_path, "h200", "speculation"), found(batches=(1, 8, 32)))
    page = tmp_path / "README.md"
    page.write_text(
        "It is 9<!-- h200/speculation: open/1/ngram/speedup --> times as fast.\n"
        "<!-- results:begin speculation/chart -->\n<!-- results:end -->\n"
    )
    (stale,) = report.outdated_pages(tmp_path, [page])
    assert stale.text.startswith("It is 2.00<!-- ") and "](h200/speculation/ngram.svg)" in stale.text
    assert "](h200/speculation/report.md)" in stale.text and "|" not in stale.text


@pytest.mark.parametrize("field", ["open/1/ngram/steps", "open/1/eagle/speedup", "open/2/ngram/speedup", "open"])
def test_a_sentence_about_drafts_that_were_not_measured_is_refused(field):
    with pytest.raises(ConfigError, match=re.escape(f"the results have no {{{field}}}")):
        speculation_report.lookup(field, found())
