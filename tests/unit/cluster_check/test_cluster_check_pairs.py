"""Which links are measured, and in which order."""

from __future__ import annotations

import pytest

from dist_train.cluster_check.rank_speed import neighbours, turns


def test_neighbours_on_a_node_and_between_nodes() -> None:
    assert neighbours(1, 4) == [(0, 1), (1, 2), (2, 3)]
    assert neighbours(3, 1) == [(0, 1), (1, 2), (2, 0)]
    assert neighbours(2, 2) == [(0, 1), (2, 3), (0, 2), (2, 0)]


@pytest.mark.parametrize(("nodes", "procs"), [(1, 2), (2, 1), (3, 1), (5, 3), (16, 8)])
def test_no_rank_has_two_links_in_one_turn(nodes: int, procs: int) -> None:
    pairs = neighbours(nodes, procs)
    grouped = turns(pairs)
    assert sorted(pair for group in grouped for pair in group) == sorted(pairs)
    for group in grouped:
        ranks = [rank for pair in group for rank in pair]
        assert len(ranks) == len(set(ranks))
    assert len(grouped) <= 6, "large jobs take no longer than small ones"
