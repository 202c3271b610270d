"""Measuring: the same work for every contender, a prediction before each number, and reports made from the samples.

Read in this order. Each room imports only rooms above it:

    statistics.py    percentiles and medians
    workloads.py     what is asked: arrivals, prompt lengths, output lengths, and the token ids themselves
    predict/         what a step costs at least, and what a phase could reach
    declare/         a benchmark as a declaration: question, prediction, tables, contenders
    record/          results.json, and the pieces that reports are made of
    measure/         one workload through one engine, timed; the machine that it runs on
    contenders/      the engines that are compared: ours, yours, and peers
    studies/         comparisons with their own tables: vLLM, quality, sampling, speculation, the scheduler
    sizing/          what a model needs and reaches on a card, next to what was measured
    speedrun/        one fixed workload with every token judged, and logs that check themselves
    registry.py      every benchmark by its name; how a contender is predicted, and its title
    report.py        report.md, and the tables in the lessons
    run/             a whole benchmark, cell by cell; one engine in its own process; a profile
    command.py       what `gradus bench`, `gradus report` and `gradus profile` do
    __main__.py      the same for `python -m gradus.bench`, with torch alone installed

Everything that only reads or predicts works without torch.
"""
