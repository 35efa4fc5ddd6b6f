"""Python stacks of ranks: of a running one for `dist-train stacks`, of a failed group before it is killed.

stack_answer     in a rank: its stacks, when the agent asks for them
collect_stacks   in the agent: ask this node's ranks for them
stack_dump       whether a rank of a failed group is still printing its stacks
"""
