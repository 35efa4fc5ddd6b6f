"""Parts of the local launcher.

last_event   the end of a run whose agents could not record it
early_stop   Ctrl-C before any agent has begun
local_option_rows  the options of the launcher: none
lost_agents  LostAgents: what follows when an agent ends and the others may not know it
"""
