"""Exports spans by OTLP with a number of calls, one after the other, and prints as JSON whether each succeeded:

    python otlp_exporter.py ADDRESS CLIENT CALLS
"""

import json
import sys

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

address, client, calls = sys.argv[1:]
exporter = OTLPSpanExporter(endpoint=f"http://{address}", insecure=True, headers={"x-client": client}, timeout=5)
span = TracerProvider().get_tracer("test").start_span("test")
span.end()
print(json.dumps([exporter.export([span]) is SpanExportResult.SUCCESS for _ in range(int(calls))]))
