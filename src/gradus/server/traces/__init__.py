"""OpenTelemetry traces of requests (`--otlp-traces-endpoint`). Nothing here is imported without that setting.

Read in this order:

names.py       attributes by their conventional names, and by vLLM's
content.py     prompts and answers as attributes, if they are asked for
export.py      spans on their way to a collector, on a thread of their own
spans.py       one span for each request, and its phases below it
"""
