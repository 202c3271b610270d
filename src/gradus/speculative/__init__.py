"""Drafts: proposed next tokens of sequences, made on the device, so that one step of the model verifies several.

Read in this order:

    history.py    the tokens of every slot, and their number: on the device, where drafts are accepted
    drafter.py    the interface of a drafter
    ngram.py      drafts from the sequence's own text
    heads.py      drafts by matrices that were trained on the model's hidden states;
                  heads_drafter.py: how they run;  heads_folder.py: where they are kept

`gradus.kernels.step` verifies drafts (`accept_drafts`), and the scheduler chooses their number
(`gradus.scheduling.drafting`). docs/design/speculation.md explains the design.
"""
