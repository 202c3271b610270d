"""What the server counts and measures, and how /metrics shows it. Read in this order:

distribution.py    a histogram that takes many equal values at once
tally.py           one body's requests: their tokens, endings, times and share of the device
meter.py           all of them: what each report of the engine adds
families.py        the table of metrics: our names, vLLM's, and where each value comes from
exposition.py      that table as Prometheus's text
"""
