"""Access: keys and their limits, capacity, and the addresses that the service itself may call.

Knows keys, quotas and addresses; does not know routes.
"""
