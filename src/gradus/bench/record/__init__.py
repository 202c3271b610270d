"""Results on disk, and the pieces of reports: numbers, sentences, figures.

Read in this order:

    results.py       results.json: every sample, with the machine and the settings it comes from
    metrics.py       the numbers read from a sample, and how each one is shown
    scripts.py       what the scripts in `benchmarks` wrote
    agent_tables.py  what became of coding agents' sessions;  goodput_tables.py: the load that servers keep up with
    long_tables.py   what a long prompt costs, chunk by chunk and by its length
                     needle_tables.py: needles found in long texts
    prose.py         sentences whose numbers come from the results
    plots.py         figures, as SVG
    pages.py         the pages that show results, and their marks
    study.py         the report of a study

No torch here, and matplotlib only where a figure is drawn.
"""
