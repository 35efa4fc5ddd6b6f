"""Facts as lines of output and back; findings as rows."""

from __future__ import annotations

import json

from made_facts import cluster, node

from dist_train.doctor.examine import examine
from dist_train.doctor.fact_lines import MARK, fact_line, read_facts
from dist_train.doctor.facts import Facts
from dist_train.doctor.findings_report import node_names, report_record, table_rows, would_launch


def lines_of(facts: Facts) -> list[str]:
    parts = (*facts.nodes, *facts.peers, *facts.shared_files, *facts.links, *facts.all_reduces)
    return [fact_line(fact) for fact in (facts.job, *parts)]


def test_facts_come_back_from_the_lines_of_a_log() -> None:
    facts = cluster()
    noise = ["[dist-train] waiting for node 1", MARK + "{torn", MARK + '{"Unknown": {}}', ""]
    lines = [*noise, *(f"[node 0] {line}" for line in lines_of(facts)), *noise]
    assert read_facts(lines) == facts


def test_lines_that_come_twice_count_once() -> None:
    lines = lines_of(cluster())
    assert read_facts([*lines, *lines]) == cluster()


def test_other_output_has_no_facts() -> None:
    assert read_facts(["epoch 1: loss 0.3", MARK + "[]"]) is None


def test_the_record_is_json_and_says_whether_a_launch_would_work() -> None:
    good, bad = cluster(), cluster(node(1, problems=("x",), unusable_gpus=("GPU 7: lost",)))
    record = json.loads(json.dumps(report_record(good, examine(good))))
    assert (record["would_launch"], record["counts"]["error"]) == (True, 0)
    assert record["facts"]["nodes"][0]["host"] == "n0"
    assert not would_launch(examine(bad))
    first = report_record(bad, examine(bad))["findings"][0]
    assert (first["severity"], first["check"], first["nodes"]) == ("error", "GPUs", [1])


def test_a_large_cluster_fits_on_a_screen() -> None:
    rows = table_rows(examine(cluster(nodes=200)))
    assert len(rows) < 30
    assert any("199 more such lines" in row[3] or "198 more such lines" in row[3] for row in rows)


def test_nodes_are_named_as_slurm_does() -> None:
    assert node_names((0, 1, 2, 7)) == "0-2,7"
    assert node_names(()) == "-"
