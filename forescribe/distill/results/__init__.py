"""What a draft is worth: accept traces, measured prices, acceptance through the engine, and the report.

Knows rows, engines and numbers; nothing of how a draft was trained.
"""
