"""Every parameter spread over ranks by torch's fully_shard (FSDP2), unit by unit.

parameter_sharding  what fsdp, hsdp and fsdp_tensor_parallel have in common
sharding_units      which modules are units
sharded_memory      what a rank holds, in closed form
"""
