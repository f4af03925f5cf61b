"""Access: keys and limits, and the addresses that the service itself may call."""
