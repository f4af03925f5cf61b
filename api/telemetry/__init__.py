"""Traces: what a request or a job spends its time on, across processes, for OpenTelemetry.

Off unless configured; then nothing of OpenTelemetry's SDK is imported and nothing is measured for it. Spans
hold times, counts, codes and ids; never text, file names or keys. Does not know routes or models.
"""
