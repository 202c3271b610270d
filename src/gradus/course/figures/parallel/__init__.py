"""p12's figures: matrices on two ranks, schedules of a pipeline, two ranks at work, and the time of a step.

Read in this order:

    cuts.py       a pair of products on two ranks, and the sum that joins them
    pipeline.py   four stages with 1, 2 and 4 micro-batches, and the bubble
    recorded.py   what ranks did, and what two H100 needed, as scripts in `benchmarks` have kept it
    ranks.py      two ranks at work, on one axis of time
    roofline.py   the time per step on 1 to 8 devices, computed, and on two H100, measured
"""
