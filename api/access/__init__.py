"""Who may call, how much, and where the service itself may call.

Knows keys, quotas and addresses; nothing of routes.
"""
