"""How rounds reach a device and how the host learns their outcome: shapes, captures, transfers.

Knows devices, rows and streams; nothing of requests, queues or models' insides. On a device without graphs
and streams (a CPU) all of it reduces to direct calls and direct reads.
"""
