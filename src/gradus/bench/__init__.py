"""Measuring: the same work for every contender, a prediction before each number, and reports made from the samples.

Read in this order:

    workloads.py     what is asked: arrivals, prompt lengths, output lengths, and the token ids themselves
    roofline.py      what a step must cost at least: bytes and operations, from the model's configuration
    prediction.py    a workload played through a phase's schedule, with the roofline as its clock
    declaration.py   what a phase's benchmark.py says: question, tables, contenders, prose
    suites.py        the same of what spans phases: ladder, ablation, matrix;  beside.py: of the final engine and vLLM
    registry.py      every benchmark by its name; how a contender is predicted, and what people call it
    measure.py       a workload driven through an engine, every token timed; repeats, interleaved
    memory.py        how much of it a contender takes
    idle.py          whether the GPU waits for the host between steps
    contenders.py    a phase's engine as a contender;  peers.py: transformers as one;  block.py: a process of its own
    fingerprint.py   what machine this is, and what it reaches;  gpu.py: what NVML knows
    results.py       results.json;  metrics.py: the numbers read from its samples
    report.py        report.md and the tables in the lessons;  prose.py, plots.py: its sentences and figures
    simulation.py    the scheduler over a machine that is a formula;  scheduling.py: what is measured of it
    suite.py         a whole benchmark, cell by cell;  profiler.py: where a step's time goes
    command.py       what `gradus bench`, `gradus report`, `gradus profile` and `python -m gradus.bench` do

Everything that only reads or predicts works without torch.
"""
