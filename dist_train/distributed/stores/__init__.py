"""The rendezvous store, by which ranks find each other.

tcp_store, file_store  the store of each kind, failing with a reason
torch_stores           torch's store classes under names that mypy knows
"""
