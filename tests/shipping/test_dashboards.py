"""The Grafana dashboard: every expression asks for what a server measures, and every panel explains itself."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.shipping.conftest import LENGTH_S
from tests.shipping.promql import read
from tests.shipping.test_alerts import recorded, unknown

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
BOARD = json.loads((FOLDER / "gradus.json").read_text())
ROWS = [panel for panel in BOARD["panels"] if panel["type"] == "row"]
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}


@pytest.mark.parametrize("expression", dict.fromkeys(EXPRESSIONS))
def test_a_panel_asks_for_what_a_server_measures(expression, known):
    assert not unknown(expression, known)
    assert (
        {"$model", "$instance"} <= set(re.findall(r"\$\w+", expression)) <= {"$model", "$instance", "$__rate_interval"}
    )


@pytest.mark.parametrize("expression", dict.fromkeys(EXPRESSIONS))
def test_an_expression_has_values_where_there_is_traffic(expression, series):
    """A server without drafts and without a cache has no share of accepted drafts, and none of hits."""
    chosen = expression.replace("$model", ".*").replace("$instance", ".*")
    result = recorded(series).evaluate(read(chosen), LENGTH_S)
    assert result or "asleep" in expression
    assert re.search("draft|prefix_cache_queries", expression) or all(value >= 0 for value in result.values())


def test_the_first_row_answers_three_questions():
    stats = [panel for panel in PANELS if panel["type"] == "stat"]
    assert [panel["title"] for panel in stats] == ["Are prompts fast?", "Is decode steady?", "Is memory left?"]
    assert min(panel["gridPos"]["y"] for panel in PANELS) == stats[0]["gridPos"]["y"] == 1


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_explains_itself_and_has_a_unit(panel):
    assert panel["description"].endswith(".") and len(panel["description"]) > 20
    assert panel["fieldConfig"]["defaults"]["unit"] and panel["datasource"]["uid"] == "${datasource}"
    assert [target["refId"] for target in panel["targets"]] == ["A", "B", "C"][: len(panel["targets"])]
    assert all(target["legendFormat"] for target in panel["targets"])


def test_panels_have_names_of_their_own_and_lie_side_by_side():
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    taken = set()
    for panel in BOARD["panels"]:
        x, y, w, h = (panel["gridPos"][side] for side in "xywh")
        cells = {(column, line) for column in range(x, x + w) for line in range(y, y + h)}
        assert x + w <= 24 and not cells & taken
        taken |= cells
    assert len(ROWS) == 7 and all(row["panels"] == [] for row in ROWS)


def test_the_variables_are_found_by_labels_that_a_server_has(known):
    assert VARIABLES.keys() == {"datasource", "model", "instance"}
    for name in ("model", "instance"):
        query = VARIABLES[name]["definition"]
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()
        assert label == name and label in known["gradus_ready"] and not unknown(selector, known)
        assert VARIABLES[name]["query"]["query"] == query


def test_grafana_finds_prometheus_and_the_dashboard():
    (source,) = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus" and source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((FOLDER / "provisioning/dashboards/gradus.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
