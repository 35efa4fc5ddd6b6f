"""`python -P -m dist_train.agent`: one per node, started by a launcher."""

import signal

# First of all: a TERM or USR2 that comes during the imports must stay pending and not end the process;
# ranks and their loader workers inherit the blocked mask.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
# Where env of an old coreutils could not block them, it ignores them; an ignored signal is never taken.
# With SIGCHLD ignored there is no exit code of a rank, and subprocess reports 0.
for _number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGCHLD):
    signal.signal(_number, signal.SIG_DFL)

import sys  # noqa: E402

from dist_train.agent.workers.interpreter_exit import reserve_exit_function  # noqa: E402

reserve_exit_function()

from dist_train.agent.become_agent import become_agent  # noqa: E402

_argv = become_agent(sys.argv[1:])

from dist_train.agent.main import main  # noqa: E402

_forked = main(_argv)
# An agent does not come here: this is a rank that its warm parent has forked.
from dist_train.agent.workers import worker_main  # noqa: E402

worker_main.main(_forked.argv, _forked.shared)
