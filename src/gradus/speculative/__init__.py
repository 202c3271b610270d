"""Drafts: what sequences may say next, proposed on the device, for the model to verify several tokens in one step.

Read in this order:

    history.py    the tokens of every slot, and how many there are: on the device, where drafts are accepted
    drafter.py    what a drafter is
    ngram.py      drafts from what the sequence itself has said
    heads.py      drafts by matrices that were trained on the model's hidden states;  states.py: which it reads;
                  heads_drafter.py: how they run;  kernel_heads_drafter.py: on a GPU;  heads_folder.py: where they are
                  kept

How drafts are verified is sampling (`gradus.sampling.sampler.standing`), and how many there are is the scheduler's
(`gradus.scheduling.drafting`). docs/design/speculation.md says why it is made so.
"""
