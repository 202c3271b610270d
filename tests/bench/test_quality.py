"""Quality of quantized models: measured on a tiny one with a stand-in for quantization, and judged from given
figures."""

import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from gradus.bench import __main__ as plain
from gradus.bench import command
from gradus.bench.measure.settings import Settings
from gradus.bench.record import pages, plots, results
from gradus.bench.record.results import Cell, Entry, Results, Run
from gradus.bench.studies import quality, quality_report, quality_text
from gradus.bench.studies.quality import Contender
from gradus.bench.studies.quality_text import CONTEXT, WINDOW, Text, Window
from gradus.calibration.methods import break_grid
from gradus.errors import ConfigError
from gradus.loading import Tokenizer, load_model, open_checkpoint
from gradus.loading.progress import Silent
from gradus.models import Linear, create_model, parameter_count
from gradus.models.shapes import SHAPES
from tests.bench.conftest import RATES
from tests.calibration.test_quantize import tame_folder
from tests.cli.conftest import gradus  # noqa: F401  # the command line, as a fixture
from tests.loading.builders import backend
from tests.loading.quantized_builders import quantize_folder
from tests.pairwise import first
from tests.phases.conftest import NaiveAttention

TINY = ["--model", "random:tiny-llama", "--device", "cpu"]
BYTES = Tokenizer.of_bytes()


class Rounded(Linear):
    """A stand-in for quantization: weights are multiples of a step, stored as bytes together with the step."""

    step = 0.01

    def __init__(self, place, in_features, out_features, bias, dtype=torch.float32, device="cpu") -> None:
        super().__init__(place, in_features, out_features, bias, dtype, device)
        del self.weight
        self.register_buffer("levels", torch.zeros(sum(out_features), in_features, dtype=torch.int8, device=device))

    def assign(self, name: str, start: int, value: Tensor) -> None:
        self.levels[start : start + len(value)] = (value / self.step).round().clamp(-127, 127)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.levels.to(x.dtype) * self.step)


class Coarse(Rounded):
    step = 0.04


class Broken(Rounded):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float("nan")


def measured(
    tmp_path: Path, *contenders: Contender, documents: int = 5, model: str = "random:tiny-llama", **asked
) -> Run:
    text = Text("a text", tuple(f"document {number}: " + "words and more words, " * 10 for number in range(documents)))
    settings = Settings(model, "cpu", "auto", commit="abc", **asked)
    file = quality.measure(settings, text, tmp_path, Mock(), contenders=contenders)
    (run,) = results.read(file).runs
    return run


# -- the text ----------------------------------------------------------------------------------------------------------


def test_a_form_feed_divides_documents_and_blank_lines_do_not(tmp_path):
    file = tmp_path / "book.txt"
    file.write_text("one\n\nstill one\f\n\ftwo\n", encoding="utf-8")
    text = quality_text.read(file)
    assert text == Text("book.txt", ("one\n\nstill one", "two\n"))
    assert text.digest != Text("book.txt", ("one", "two")).digest


def test_windows_cover_each_document_once_and_none_spans_two():
    texts = ("a" * (2 * WINDOW + CONTEXT + 5), "b" * CONTEXT, "c" * (CONTEXT + 1))
    found = quality_text.windows(Text("t", texts), BYTES, 10_000)
    assert [(window.document, len(window.token_ids)) for window in found] == [
        (0, WINDOW), (0, WINDOW), (0, CONTEXT + 5), (2, CONTEXT + 1),
    ]  # fmt: skip
    assert [len(window.targets) for window in found] == [WINDOW - CONTEXT, WINDOW - CONTEXT, 5, 1]
    assert {bytes(window.token_ids)[:1] for window in found} == {b"a", b"c"}
    assert len(quality_text.windows(Text("t", texts[:1]), BYTES, 100)[0].token_ids) == 100


def test_every_window_begins_as_the_models_texts_do():
    from gradus.loading.tokenizer import begin_texts_with

    made = backend()
    begin_texts_with(made, 0, None)
    found = quality_text.windows(Text("t", ("the cat " * 2000,)), Tokenizer(made, bos_token_id=0), 10_000)
    assert len(found) > 2 and all(window.token_ids[0] == 0 for window in found)
    assert max(len(window.token_ids) for window in found) == WINDOW
    plain_ids = Tokenizer(backend()).encode("the cat " * 2000)
    assert [token for window in found for token in window.token_ids[1:]] == plain_ids[: sum(map(_body, found))]


def _body(window: Window) -> int:
    return len(window.token_ids) - 1


def test_a_quick_look_takes_one_window_of_a_few_documents():
    windows = [Window(document, (0,) * 100) for document in (0, 0, 1, 3, 3, 4)]
    assert [window.document for window in quality_text.first_of_each(windows, 3)] == [0, 1, 3]


def test_the_repositorys_own_text_is_its_pages_without_their_tables_of_results():
    text = quality_text.own(command.repository())
    assert len(text.documents) == len(pages.pages(command.repository())) > 20
    whole = "\n".join(text.documents)
    assert "\n<!-- results:begin" not in whole and "## Where it loses" in whole and len(whole) > 100_000


# -- measuring ---------------------------------------------------------------------------------------------------------


def test_all_are_beside_float32_and_the_first_row_is_bfloat16(tmp_path, known_machine):
    fine, coarse = Contender("fine", linear=Rounded), Contender("coarse", linear=Coarse)
    (cell,) = measured(tmp_path, fine, coarse).cells
    (narrow,), (near,), (far,) = (entry.samples for entry in cell.entries)
    assert [entry.contender for entry in cell.entries] == ["bfloat16", "fine", "coarse"]
    assert 0 < narrow["kl"] < near["kl"] < far["kl"]
    for sample in (narrow, near, far):
        assert 0 < sample["kl_p50"] <= sample["kl_p999"] <= sample["kl_max"] and 0 < sample["kl_error"] < sample["kl"]
        assert sample["perplexity"] / sample["reference_perplexity"] == pytest.approx(sample["perplexity_ratio"], 1e-3)
    assert near["reference_perplexity"] == far["reference_perplexity"] == narrow["reference_perplexity"]
    assert cell.workload["documents"] == 4 and not cell.workload["own"]  # of five, the fourth is not judged


def test_a_scheme_that_loses_nothing_is_at_no_distance(tmp_path, known_machine):
    """Nothing but the scheme is rounded: there is no floor of bfloat16's, which would hide what is small."""
    (cell,) = measured(tmp_path, Contender("floats")).cells
    assert cell.entries[0].samples[0]["kl"] > 0 and cell.entries[1].samples[0]["kl"] == 0


def test_every_fourth_document_is_for_quantizers(tmp_path):
    text = Text("a text", tuple("abcdefghi"))
    judged, looked_at = quality_text.divided(text)
    assert judged.documents == ("a", "b", "c", "", "e", "f", "g", "", "i") and looked_at == "d\nh"
    assert quality_text.divided(Text("short", ("a", "b", "c")))[1] is None


def test_ways_to_round_are_measured_on_weights_off_their_grid(tmp_path, known_machine, monkeypatch):
    """A checkpoint of files, so that `gradus quantize` can be run. GPTQ knows the text; to nearest knows nothing."""
    folder = tame_folder(tmp_path / "float")
    real = quality.quantize
    prepared = []

    def spied(*arguments, prepare, **others):
        prepared.append(prepare)
        real(*arguments, prepare=prepare, **others)

    monkeypatch.setattr(quality, "quantize", spied)
    monkeypatch.setattr(quality, "GROUP", 32)  # of rows of 64 and 96 weights
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other processes may measure, too
    ways = [Contender(method, method=method) for method in ("rtn", "gptq", "awq")]
    (cell,) = measured(tmp_path, *ways, documents=12, model=str(folder)).cells
    found = {entry.contender: entry.samples[0] for entry in cell.entries}
    assert list(found) == ["bfloat16", "rtn", "gptq", "awq"]
    assert found["gptq"]["kl"] < 0.8 * found["rtn"]["kl"] and found["awq"]["kl"] < found["rtn"]["kl"], found
    assert prepared == [break_grid] * 3
    assert not list(Path(tempfile.gettempdir()).glob("gradus-quality-*"))


def test_what_has_nothing_to_calibrate_by_is_left_out_with_its_reason(tmp_path, known_machine):
    folder = tame_folder(tmp_path / "float")
    (cell,) = measured(tmp_path, Contender("awq", method="awq"), documents=3, model=str(folder)).cells
    assert cell.entries[1].skipped == "a text of fewer than four documents leaves none to calibrate by"
    (cell,) = measured(tmp_path / "other", Contender("gptq", method="gptq")).cells
    assert "random weights have no files" in cell.entries[1].skipped


def test_a_model_that_is_quantized_is_no_reference(tmp_path):
    quantize_folder(tmp_path / "model", "awq")
    with pytest.raises(ConfigError, match=r"is quantized \(awq int4-g32\): give what it was made of"):
        measured(tmp_path, model=str(tmp_path / "model"))


def test_every_scheme_is_measured_and_more_bits_are_nearer(tmp_path, known_machine):
    (cell,) = measured(tmp_path, *quality.CONTENDERS).cells
    found = {entry.contender: entry.samples[0] for entry in cell.entries if entry.samples}
    assert list(found) == [
        "bfloat16",
        "int8",
        "fp8",
        "fp8-block",
        "int4",
        "fp8-head",
        "int4-head",
        "fp8-kv",
        "int8-activations",
    ]
    for name in ("fp8", "int4"):
        assert found[f"{name}-head"]["bits_per_weight"] < found[name]["bits_per_weight"]
    assert 0 < found["int8"]["kl"] < found["fp8"]["kl"] < found["int4"]["kl"]
    assert 0 < found["int8-activations"]["kl"] < found["int8"]["kl"]
    assert found["fp8-kv"]["kl"] > 0 and found["fp8-kv"]["bits_per_weight"] == found["bfloat16"]["bits_per_weight"]


def test_hidden_rows_and_targets_belong_together(tmp_path):
    """The reported perplexity is that of the model's own next-token distributions, computed with textbook attention."""
    checkpoint = open_checkpoint("random:tiny-llama")
    window = Window(0, tuple(range(1, CONTEXT + 4)))
    reader = quality.Reader(checkpoint, torch.device("cpu"), [window], Mock(), Silent())
    entry = reader.entry(quality.REFERENCE, against=reader.read(quality.REFERENCE))
    model = load_model(checkpoint, dtype=torch.float32, device="cpu")
    with torch.inference_mode():
        ids = torch.tensor(window.token_ids)
        logits = model.logits(model(ids, torch.arange(len(ids)), NaiveAttention(model)))
    wanted = torch.nn.functional.cross_entropy(logits[CONTEXT - 1 : -1], ids[CONTEXT:]).exp().item()
    (sample,) = entry.samples
    assert sample["perplexity"] == pytest.approx(wanted, rel=1e-4) and len(window.targets) == 3
    assert (sample["kl"], sample["top1"], sample["perplexity_ratio"]) == (0.0, 1.0, 1.0)


def test_a_tied_head_is_weighed_once_and_positions_are_not_weights():
    for shape in ("tiny-llama", "tiny-gemma3", "tiny-gpt2"):
        config = SHAPES[shape]
        assert quality.weight_bytes(create_model(config)) == 2 * parameter_count(config)  # as it would be served
    model = create_model(SHAPES["tiny-llama"], dtype=torch.bfloat16, linear=Rounded)
    kept = sum(part.levels.numel() for part in model.modules() if isinstance(part, Rounded))
    assert quality.weight_bytes(model) == kept + 2 * (parameter_count(SHAPES["tiny-llama"]) - kept)


def test_a_contender_whose_logits_are_not_finite_is_told_and_the_others_are_measured(tmp_path, known_machine):
    ways = {"broken": Broken, "fine": Rounded}
    contenders = [Contender(name, linear=linear) for name, linear in ways.items()]
    (cell,) = measured(tmp_path, *contenders).cells
    assert [bool(entry.samples) for entry in cell.entries] == [True, False, True]
    assert cell.entries[1].skipped == "its logits are not finite"
    parts = list(quality_report.tables_of(results.read(tmp_path / "cpu/quality/results.json"), run_of(cell)))
    assert "broken: not measured, its logits are not finite." in parts


def run_of(cell: Cell) -> Run:
    machine = {"hardware": {}, "rates": RATES, "versions": {}}
    return Run("m", "", "cpu", machine, {"commit": "abc", "quick": False}, [cell])


def test_contenders_are_chosen_by_name(tmp_path, known_machine):
    ways = [Contender(name, linear=Rounded) for name in ("a", "b")]
    (cell,) = measured(tmp_path, *ways, contenders=("b",)).cells
    assert [entry.contender for entry in cell.entries] == ["bfloat16", "b"]
    (cell,) = measured(tmp_path, *ways, contenders=("bfloat16",)).cells
    assert [entry.contender for entry in cell.entries] == ["bfloat16"]


def test_one_document_is_measured_without_an_error(tmp_path, known_machine):
    (cell,) = measured(tmp_path, documents=1).cells
    assert cell.entries[0].samples[0]["kl_error"] is None
    _, (row,) = quality_report.table_of(cell)
    assert "±" not in "".join(row)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("front_end", first(["typer", "plain"]))
def test_both_front_ends_measure_a_text_and_write_the_report(gradus, tmp_path, known_machine, front_end):  # noqa: F811
    book = tmp_path / "book.txt"
    book.write_text("\f".join("word " * 40 for _ in range(3)), encoding="utf-8")
    arguments = ["quality", "--quick", "--text", str(book), "--out", str(tmp_path / "out"), *TINY]
    code = gradus("bench", *arguments).code if front_end == "typer" else plain.main(arguments)
    assert code == 0
    folder = tmp_path / "out" / "cpu" / "quality"
    assert {file.name for file in folder.iterdir()} == {"report.md", "results.json", "text.svg"}
    text = (folder / "report.md").read_text()
    assert "not to be quoted" in text and "**Random weights.**" in text and "3 documents of book.txt" in text
    assert "$ gradus bench quality --device cpu --model random:tiny-llama --text book.txt\n" in text
    assert str(tmp_path) not in (folder / "results.json").read_text()
    assert command.report(tmp_path / "out", check=True) == 0


def test_a_model_without_a_tokenizer_cannot_read(monkeypatch, tmp_path):
    checkpoint = open_checkpoint("random:tiny-llama")
    checkpoint.tokenizer = None
    monkeypatch.setattr(quality, "open_checkpoint", lambda name, progress=None: checkpoint)
    with pytest.raises(ConfigError, match="random:tiny-llama: came without a tokenizer"):
        measured(tmp_path)


# -- what is said of it ------------------------------------------------------------------------------------------------


def sample(kl: float, size: int, bits: float, **others) -> dict:
    return {
        "weight_bytes": size, "bits_per_weight": bits, "kl": kl, "kl_error": kl / 10,
        "kl_p50": kl / 4, "kl_p999": 30 * kl, "kl_max": 100 * kl, "top1": 0.97, "top1_error": 0.004,
        "perplexity": 12.0, "reference_perplexity": 11.9, "perplexity_ratio": 1.0084, "perplexity_ratio_error": 0.0012,
        **others,
    }  # fmt: skip


def found(kl: float = 0.02) -> Results:
    workload = {"what": "10 windows of a book", "digest": "d", "text": "book.txt", "own": False}
    entries = [
        Entry("bfloat16", samples=[sample(0.001, 270_000_000, 16.0, top1=0.995)]),
        Entry("int8", samples=[sample(0.002, 140_000_000, 8.25)]),
        Entry("int4", samples=[sample(kl, 80_000_000, 4.5)]),
    ]
    run = run_of(Cell("text", "book.txt", 0, 1, workload, entries))
    run.model = "smollm2-135m"
    return Results("cpu", "quality", [run])


def test_the_table_has_a_row_per_contender_and_errors_beside_figures():
    header, rows = quality_report.table_of(found().runs[0].cells[0])
    assert len(header) == len(rows[0]) == 8
    assert rows[0][:3] == ["bfloat16", "270", "16"]
    assert rows[2] == [
        "int4", "80", "4.5", "0.02 ± 0.002", "0.005", "0.6", "97.00 ± 0.40 %", "1.0084 ± 0.0012",
    ]  # fmt: skip


def test_losses_are_told_in_times_the_first_row_the_farthest_first():
    text = "\n".join(part for part in quality_report.STUDY.report(found()) if isinstance(part, str))
    assert (
        "*bfloat16* is 0.001 nats from float32: 0.1 at its worst position, and 0.50 % of the first choices differ. "
        "*int4* is 20 times as far: 2 at its worst position, and 3.00 % of the first choices differ. "
        "*int8* is 2 times as far"
    ) in text
    assert "Random weights" not in text and "not to be quoted" not in text


def test_the_figure_has_a_row_per_contender_and_can_be_drawn():
    ((name, picture),) = quality_report.STUDY.figures(found(), "CPU")
    assert name == "text.svg" and [series.y for series in picture.series] == [[0.001], [0.002], [0.02]]
    svg = plots.draw(picture)
    assert all(f">{text}</text>" in svg for text in ("int4 (4.5 bits)", "0.002", "KL divergence, nats"))
    ((_, other),) = quality_report.STUDY.figures(found(kl=0.03), "CPU")
    assert other.digest() != picture.digest()
