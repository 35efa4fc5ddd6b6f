"""Saves that are written while the training goes on.

background_saves  the one save of a manager that is under way, and the group that its ranks agree on
pending_save      the thread that writes it
staged_save       what is saved, in copies that the training does not change
staging_buffer    the host memory of these copies, used again by every save
"""
