"""Whether traces are on, and the tracing that is asked for.

    serving.tracing = trace_settings.of(settings)

Knows the setting and OpenTelemetry's variables; imports its SDK only where they ask for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from forescribe.asr.errors import UsageError
from forescribe.asr.installing import how_to_install

from ..settings import Settings
from .tracing import Tracing


def configured(settings: Settings, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether traces are to be sent: by the setting `traces`, or OpenTelemetry's own variables."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter:
        return exporter != "none"
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return settings.traces or any(environment.get(name) for name in endpoints)


def of(settings: Settings) -> Tracing:
    """The tracing that the settings and the environment ask for. Raises UsageError if it is not installed
    or its exporter is unknown."""
    if not configured(settings):
        return Tracing()
    try:
        from .otel import traces
    except ModuleNotFoundError as error:
        raise UsageError(
            f"traces need {error.name}: {how_to_install('serve', 'otel')}, "
            "or unset traces and OTEL_EXPORTER_OTLP_ENDPOINT"
        ) from error
    return traces()
