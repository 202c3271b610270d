"""A layer's mixture of experts (torch reference: `gradus.models.experts`). Read in this order:

choice.py      each row's experts and their weights; rows grouped by expert
stages.py      the stages that multiply an expert's rows with its matrices, and add up each row's results
prompt.py      the same for a prompt whose other products are torch's
"""
