"""Comparisons that need tables of their own. Each has a module that measures, and one that reports without torch.

Read in this order:

    beside.py              the final engine and vLLM on the same GPU (measured by `benchmarks`)
    sampling_cost.py       the cost of each sampling parameter;  sampling_report.py: its report
    quality.py             a quantized model against its original;  divergence.py: the arithmetic;
                           quality_text.py: the text;  quality_report.py: its report
    speculation_report.py  the report on drafters (measured by `benchmarks`)
    needle.py              needles found in long texts, by the cache's format (measured by `benchmarks`);
                           needle_text.py: the texts
    scheduling.py          the scheduler in simulation, and its report
"""
