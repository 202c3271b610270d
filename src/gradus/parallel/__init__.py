"""One model on several devices: each has a part of every matrix (tensor parallelism, Shoeybi et al. 2019), or some of
the layers (pipeline parallelism, Huang et al. 2019), or both.

Rank 0 is the engine's own process: it schedules, and sends each step's plan to the other ranks. All ranks run the same
plan on their parts and exchange partial sums. Those with the last layers sample, each the same tokens, so nothing has
to be sent back except in a pipeline.

Read in this order:

    place.py       a rank's layers, heads and vocabulary rows
    group.py       the ranks' exchange: sums and parts, the same bits on every rank
    layers.py      products that sum or join over the ranks, and the embedding
    slices.py      a rank's slice of a checkpoint, under the checkpoint's names
    model.py       a rank's model: sizes, layers, weights
    pipeline.py    a stage of layers among others
    symmetric.py   memory that GPUs write into each other's
    exchange.py    a rank's exchange on GPUs: few rows through that memory, many through NCCL
    choice.py      how many rows are few: measured
    fused.py       a rank's model on this project's kernels
    messages.py    bytes between the ranks, bounded
    ranks.py       rank 0's side: starts the other processes, sends them plans, notices their deaths
    compiling.py   constraints, compiled by all ranks before the plans that need them

The other side is `gradus.assembly.rank`, a process that loads its part and runs the plans that it receives.
"""
