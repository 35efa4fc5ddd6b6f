"""How long anything may take before it counts as lost, in seconds (CONTRACT 3); tests import these."""

from __future__ import annotations

PROCESS_DEATH_S = 15.0  # a worker or an agent died: everybody has left or restarts
HOST_DEATH_S = 60.0  # a host died or a cable was cut
HEARTBEAT_S = 5.0
HEARTBEAT_LOST_S = 30.0
STORE_CALL_S = 30.0
TERM_TO_KILL_S = 30.0
BLOCKED_RANK_S = 30.0  # a rank whose interpreter is blocked after a peer has finished
INTERPRETER_END_S = 30.0  # the interpreter's own end, after a rank's threads and exit functions
FAILED_INTERPRETER_END_S = 5.0  # the same of a rank that failed: the others wait for its report
IDLE_EXIT_S = 600.0  # a rank whose script has ended, and whose threads or exit functions do nothing
JOIN_S = 900.0
MEMBERSHIP_CHECK_S = 15.0  # missing nodes are named this often
OWN_EXIT_S = 1.0  # a rank whose script had ended before the attempt failed; less than REPORTS_S
REPORTS_S = 2.0  # how long node 0 waits for other nodes' reports after the first failure
STACK_DUMP_S = 2.0  # a failed group's ranks print their stacks, then they are killed
CONNECT_S = 5.0  # one try to reach node 0, handshake included
STALE_ADDRESS_S = 120.0  # in a cluster's DNS node 0's name may still lead to an earlier agent's address
MONITOR_S = 0.05
