"""Several GPUs and many replicas, against numbers worked out by hand."""

import json
from dataclasses import replace

import pytest

from gradus.bench import report
from gradus.bench.predict.beyond import LENGTH, WANTED, Around, Door, Exchanges, Gpu, deployment, on, server
from gradus.bench.predict.roofline import Machine
from gradus.bench.record import beyond_tables
from gradus.bench.record.scripts import parts
from gradus.models.shapes import SHAPES
from tests.bench.test_scripts import BENCHMARKS

LLAMA = SHAPES["llama-3.1-8b"]
GB = 1e9
GPU = Gpu(Machine(bandwidth=4000 * GB, rate=800e12), memory=100 * GB)
LINE = [(0.0, 10e-6), (1e6, 20e-6)]  # 10 µs, and 10 more for each MB
EXCHANGES = Exchanges(pushed=LINE, two_shot=LINE, nccl=[(0.0, 30e-6), (1e6, 35e-6)])
AROUND = Around(
    host=[(1, 100e-6), (257, 356e-6)], pack=[(1, 5e-6), (2, 5e-6)], send=[(1, 10e-6), (2, 10e-6)], front_end=40_000.0
)


def test_between_measured_points_lies_a_line_and_beyond_them_the_last_one():
    assert [on([(1, 5.0), (3, 7.0), (4, 10.0)], x) for x in (0, 1, 2, 3.5, 6)] == [5, 5, 6, 8.5, 16]


def test_a_push_receives_from_all_others_and_a_ring_sends_less_than_twice():
    """0.8 MB: pushing takes 10 + 10 x 0.8 x (n - 1) µs, NCCL 30 + 5 x 0.8 x 2 (n - 1) / n."""
    assert EXCHANGES.sum(0.8e6, 2) == pytest.approx(18e-6)
    assert EXCHANGES.sum(0.8e6, 8) == pytest.approx(37e-6)
    assert EXCHANGES.two_shot_sum(0.8e6, 8) == pytest.approx(24e-6)
    assert EXCHANGES.join(0.8e6, 2) == pytest.approx(32e-6)


def test_pushing_wins_up_to_fewer_rows_on_more_gpus():
    """Rows of 0.1 MB: 10 + (n - 1) r against 30 + r (n - 1) / n, so r < 40 on 2 GPUs and r < 3.3 on 8."""
    assert [EXCHANGES.most_pushed_rows(100_000, gpus) for gpus in (2, 8)] == [32, 2]


def test_a_server_on_one_gpu_is_its_roofline():
    """7.5 G weights of 2 bytes are read in 3.8 ms, but 256 rows through them are multiplied in 4.8."""
    one = server(LLAMA, 16, GPU, 1, EXCHANGES, AROUND)
    token = 131_072
    assert one.sequences == WANTED and one.sums == 0
    assert one.matrices == pytest.approx(2 * 256 * 7.505e9 / 800e12, rel=1e-3)
    assert one.cache == pytest.approx(256 * LENGTH * token / 4000e9, rel=2e-3)
    assert one.room == int((90 * GB - 2 * 8_030_261_248) / token)
    assert one.host == pytest.approx(355e-6), "no messages to other ranks"
    assert one.breaks_first == "GPU: cache"


def test_two_gpus_halve_all_but_the_sums():
    one, two = (server(LLAMA, 16, GPU, gpus, EXCHANGES, AROUND) for gpus in (1, 2))
    assert (two.matrices, two.cache) == (one.matrices / 2, one.cache / 2)
    row, logits = 256 * 4096 * 2, 256 * 128_256 * 2
    assert two.sums == pytest.approx(65 * (10 + 10 * row / 1e6) * 1e-6 + (30 + 5 * logits / 2e6) * 1e-6)
    assert two.host == pytest.approx(355e-6 + 5e-6 + 10e-6)
    sixteen = server(LLAMA, 16, GPU, 16, EXCHANGES, AROUND)
    assert sixteen.cache == pytest.approx(one.cache / 8), "there are 8 key-value heads"


def test_the_slowest_part_is_named_and_memory_before_it():
    slow = replace(AROUND, host=[(1, 1.0), (2, 1.0)])
    assert server(LLAMA, 16, GPU, 1, EXCHANGES, slow).breaks_first == "host"
    assert server(LLAMA, 16, GPU, 1, EXCHANGES, replace(AROUND, front_end=1.0)).breaks_first == "front end"
    small = replace(GPU, memory=40 * GB)
    few = server(LLAMA, 16, small, 1, EXCHANGES, AROUND)
    assert 0 < few.sequences == few.room // LENGTH < WANTED and few.breaks_first == "memory, then GPU: cache"
    assert server(LLAMA, 16, replace(GPU, memory=17 * GB), 1, EXCHANGES, AROUND).breaks_first.startswith("memory: the")


def test_in_8_bits_the_ends_of_the_model_keep_their_width():
    ends = 2 * 128_256 * 4096
    one = server(LLAMA, 8, GPU, 1, EXCHANGES, AROUND)
    weights = 8_030_261_248 + ends
    assert one.room == pytest.approx((90 * GB - weights) / 65_536, rel=1e-4)


def test_replicas_ask_for_their_tokens_and_the_router_for_each_request_and_list():
    door = Door({"front": 20e-6}, choose=[(1, 1e-4), (100, 2e-4)], publish=1e-3, every=2.0, list_bytes=1000)
    ten = deployment(10, 2560.0, door)
    assert (ten.demand, ten.published) == (25_600, 5000)
    assert ten.busy["front"] == pytest.approx(0.512)
    assert ten.busy["router"] == pytest.approx(100 * on(door.choose, 10) + 0.005)
    assert ten.breaks_first == "" and deployment(20, 2560.0, door).breaks_first == "front"


def test_the_page_shows_what_the_formulas_say_today():
    pages = [BENCHMARKS.parent / "docs" / name for name in ("design/beyond.md", "deploy.md")]
    assert not list(report.outdated_pages(BENCHMARKS.parent / "reports", pages)), "gradus report"


def test_tables_are_made_of_the_file_alone(tmp_path):
    """Twice the sums make twice their column, and a share is bold where one processor is not enough."""
    found = json.loads((BENCHMARKS / "beyond.json").read_text())
    (tmp_path / "beyond.json").write_text(json.dumps(found))

    def rows(name, column):
        tables = [part for part in parts(name, tmp_path, tmp_path / "page.md") if not isinstance(part, str)]
        return [row[table[0].index(column)] for table in tables for row in table[1]]

    before = rows("beyond/gpus", "sums, ms")
    assert len(before) == 2 * len(beyond_tables.MODELS) * len(beyond_tables.GPUS) and before[0] == ""
    us = found["exchanges"]["us"]
    found["exchanges"]["us"] = {way: {at: 2 * took for at, took in points.items()} for way, points in us.items()}
    (tmp_path / "beyond.json").write_text(json.dumps(found))
    after = rows("beyond/gpus", "sums, ms")
    doubled = [float(two) / float(one) for one, two in zip(before, after, strict=True) if one]
    assert doubled and all(ratio == pytest.approx(2, rel=0.01) for ratio in doubled)
    fronts = rows("beyond/replicas", "front, our way")
    assert not fronts[0].startswith("**") and fronts[-1].startswith("**")
