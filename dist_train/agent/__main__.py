"""`python -P -m dist_train.agent`: one per node, started by a launcher."""

import signal

# First of all: a TERM or USR2 that comes while we import must be kept, not kill us; ranks and their
# loader workers inherit the blocked mask.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
# Whoever could not block them for us ignored them (an old coreutils); an ignored signal is never taken.
for _number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(_number, signal.SIG_DFL)

import sys  # noqa: E402

from dist_train.agent.main import main  # noqa: E402

main(sys.argv[1:])
