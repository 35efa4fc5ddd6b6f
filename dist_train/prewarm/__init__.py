"""Begin the import of torch as the command line's first act, in the process that becomes node 0's agent.

The import takes seconds, and parsing, validation and planning of a launch go on meanwhile. The agents of
other simulated nodes are forks of the same process, so that torch is imported once for all of them.

import_choice    whether a command line may have its agents so, and what is known of them already
resumed_run      what the record of a run says of its agents, for `resume`
prewarmed_agent  the process as its command sees it: begun, taken over as agents, or ended
agent_handle     an agent as its launcher sees it, also one that is still to be forked
early_variables  variables that are read at the interpreter's start or while torch is imported
"""
