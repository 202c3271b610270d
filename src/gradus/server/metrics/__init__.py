"""The server's measurements, and /metrics, which shows them. Read in this order:

distribution.py    a histogram that takes many equal values at once
meter.py           all requests, updated with each report of the engine
families.py        the table of metrics: our names, vLLM's, and each value's source
exposition.py      that table as Prometheus's text
"""
