"""Many machines by Ray Data: `forescribe transcribe --cluster`, and `forescribe.ray` for pipelines.

`connection` finds or starts a cluster, `order` is what every worker is told, `workers` are the actors and
what they are given. Ray is imported inside of functions.
"""
