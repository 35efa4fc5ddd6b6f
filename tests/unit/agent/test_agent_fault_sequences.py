"""Longer sequences of faults than two, drawn at random, under the same rules as all pairs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from test_agent_two_faults import FAULTS, PHASES, problem

STEP = st.tuples(
    st.sampled_from(list(FAULTS)), st.integers(0, 2), st.sampled_from([0.0, 0.15, 0.4, 3.0, 12.0])
)


@given(
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from(list(PHASES)),
    st.lists(STEP, min_size=3, max_size=7),
)
@settings(max_examples=400, deadline=None, derandomize=True, database=None)
def test_any_sequence_of_faults_ends_in_time_with_the_right_code(
    nodes: int, replaces: bool, max_restarts: int, phase: str, steps: list[tuple[str, int, float]]
) -> None:
    here = [(fault, node % nodes, pause_s) for fault, node, pause_s in steps]
    assert problem(nodes, replaces and nodes > 1, max_restarts, phase, here) == ""
