"""The dashboard and the rules in deploy/, without a worker: `tests/integration/test_prometheus.py` has one."""

from __future__ import annotations

import json
import math
import re

import yaml
from aiokafka import TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from app.kafka.batches.numbers import BatchNumbers
from app.pipeline.report import FlowReport
from app.pipeline.stats import PipelineStats
from app.web.metrics import Metrics
from tests.app.reports import Pipeline
from tests.prometheus import DEPLOY, dashboard_queries, promtool, scaled

RULES = DEPLOY / "prometheus" / "rules.yml"


def known() -> set[str]:
    """The names of all series that a worker has."""
    stats = PipelineStats(batches=BatchNumbers(lambda: 7.0), failed={"chunk": 1}, discarded={"expired": 1})
    stats.expiry_margins_s = {"orders": -math.inf}
    stats.batches.delivered("a", wire_bytes=100, uncompressed_bytes=400, records=3)
    pipeline = Pipeline(stats=stats, flow_report=FlowReport(positions={TopicPartition("raw", 0): (1, 1, 1)}))
    text = Metrics([pipeline], 1).text().decode()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def test_queries_name_series_that_there_are() -> None:
    """No panel, no alert and no test of an alert goes by a series that a worker does not have."""
    texts = [query for _, query in dashboard_queries()]
    texts += [(DEPLOY / "prometheus" / name).read_text() for name in ("rules.yml", "rules_test.yml")]
    named = set(re.findall(r"\b(?:wideload|process)_[a-z0-9_]+\b", "\n".join(texts)))
    assert len(named) > 20
    assert named - known() == set()


def test_dashboard_is_whole() -> None:
    """Ids are unique, no panel covers another, each has a description, and each query goes by the variables."""
    board = json.loads((DEPLOY / "grafana" / "wideload.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)
    assert all(panel["description"] for panel in panels if panel["type"] != "row")
    assert {variable["name"] for variable in board["templating"]["list"]} == {"datasource", "instance", "pipeline"}
    assert all('instance=~"$instance"' in query for _, query in dashboard_queries())


def test_each_alert_has_a_test() -> None:
    """An alert is one that `rules_test.yml` has seen fire, with a severity, a summary and what to do."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    tests = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yml").read_text())["tests"]
    fired = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each.get("exp_alerts")}
    alerts = [rule for rule in rules if "alert" in rule]
    assert {rule["alert"] for rule in alerts} == fired
    assert all(rule["labels"]["severity"] and set(rule["annotations"]) == {"summary", "description"} for rule in alerts)


def test_rules_with_promtool() -> None:
    """Prometheus takes the rules, those with short durations too, and their own tests pass."""
    assert "SUCCESS" in promtool("check", "rules", str(RULES))
    assert "SUCCESS" in promtool("test", "rules", str(RULES.with_name("rules_test.yml")))


def test_scaled_durations() -> None:
    """All durations of the rules are found."""
    text = scaled(RULES.read_text(), 200)
    found = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    assert not re.search(r"\b\d+[mh]\b", "".join(f"{rule['expr']} {rule.get('for', '')}" for rule in found))
    assert len(re.findall(r"\b\d+ms\b", text)) > 10
