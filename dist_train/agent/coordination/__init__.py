"""How nodes form an attempt and agree on its end: a coordinator on node 0, a client on every node.

address              the address by which other nodes reach this one
endpoint             where node 0 listens, and how the others find and reach it
handshake            check that the other side is an agent of this run
messages             the messages between agents and node 0
preflight_agreement  whether the nodes that joined may run together
store_address        where the store of an attempt's ranks listens
attempt_state        AttemptState: what node 0 has received about one attempt
coordinator          Coordinator: node 0's state machine, without sockets or threads
coordinator_server   CoordinatorServer: the nodes' connections to it
coordinator_client   CoordinatorClient: one node's connection
rendezvous           NodeRendezvous: torch elastic's RendezvousHandler over the client
"""
