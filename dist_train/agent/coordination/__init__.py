"""How nodes form an attempt and agree on its end: a coordinator on node 0, a client on every node.

address              the address by which other nodes reach this one
endpoint             where node 0 listens, and how the others find and reach it
line_buffer          lines out of a connection's bytes, bounded in length and time
handshake            check that the other side is an agent of this run
message_seal         the MAC of each message after the handshake
messages             the messages between agents and node 0
membership_line      which nodes are here and which are missing, in one line
preflight_agreement  whether the nodes that joined may run together
store_address        where the store of an attempt's ranks listens
attempt_state        AttemptState: what node 0 has received about one attempt
coordinator          Coordinator: node 0's state machine, without sockets or threads
coordinator_server   CoordinatorServer: the nodes' connections to it, in one loop
peer_connection      PeerConnection: one of them
unauthenticated_peers  how many strangers may be connected, and for how long
agent_connection     AgentConnection: a node's end of its connection
coordinator_client   CoordinatorClient: what a node has received over it
rendezvous           NodeRendezvous: torch elastic's RendezvousHandler over the client
"""
