"""Parts of the local launcher.

lost_agents  LostAgents: what follows when an agent ends and the others may not know it
"""
