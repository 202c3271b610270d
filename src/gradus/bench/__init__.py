"""Measuring: the same work for every contender, a prediction before each number, and reports made from the samples.

Read in this order:

    workloads.py     what is asked: arrivals, prompt lengths, output lengths, and the token ids themselves
    roofline.py      what a step must cost at least: bytes and operations, from the model's configuration
    prediction.py    a workload played through a phase's schedule, with the roofline as its clock
    declaration.py   what a phase's benchmark says: question, tables, contenders, prose
    suites.py        the same of what spans phases: ladder, ablation, matrix;  beside.py: of the final engine and vLLM
    registry.py      every benchmark by its name; how a contender is predicted, and its title
    measure.py       a workload driven through an engine, every token timed; repeats, interleaved
    memory.py        how much of it a contender takes
    idle.py          whether the GPU waits for the host between steps
    contenders.py    a phase's engine as a contender;  block.py: a process of its own;  block_process.py: how it is run
    yours.py         a student's phases among the contenders
    peers.py         transformers as a contender
    llama_cpp.py     llama.cpp as a contender;  gguf_files.py: our checkpoints in its format
    fingerprint.py   what machine this is, and what it reaches;  gpu.py: what NVML knows
    statistics.py    percentiles and medians
    results.py       results.json;  metrics.py: the numbers read from its samples;  scripts.py: other results
    report.py        report.md and the tables in the lessons;  prose.py, plots.py: its sentences and figures
    simulation.py    the scheduler over a machine that is a formula;  scheduling.py: what is measured of it
    sampling_cost.py what each sampling parameter costs beside the plain draw;  sampling_report.py: what is said of it
    quality.py       how far a quantized model is from its original;  divergence.py: in which figures;
                     quality_text.py: on which text;  quality_report.py: what is said of it
    speculation_report.py   what is said of the benchmark of drafters;  outline.py: how these three begin
    suite.py         a whole benchmark, cell by cell;  progress.py: how far it is
    profiler.py      where a step's time goes
    command.py       what `gradus bench`, `gradus report` and `gradus profile` do
    __main__.py      the same for `python -m gradus.bench`, with torch alone installed

Everything that only reads or predicts works without torch.
"""
