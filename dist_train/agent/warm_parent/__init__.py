"""Ranks by fork from one process of the node that has imported torch once, where that is safe.

An import of torch takes seconds of CPU, and every rank of every attempt paid it. The warm parent is forked
from the agent before any thread starts, imports nothing more and runs no operation; each rank is a fork
of it, reset to what a new process would be, and then the agent's own child.

warm_parent        WarmParent: the agent's handle: start it, ask it for ranks
server             the warm parent's own loop: take requests, fork ranks
forked_rank        a rank after its fork
process_reset      make a fork what a new process would be
descriptor_owners  inherited sockets and files, which would close a number that is another's by then
shared_modules     SharedModules: the end of a forked rank, which leaves them as they are
process_environ    /proc/PID/environ, by which processes of a run are found
late_variables     say it where a rank sets such a variable too late
spawn_reason       why a run's ranks must be spawned
hiding_files       files beside a script that have the name of an imported module
rank_child         a rank as its agent sees it: spawned or forked
"""
