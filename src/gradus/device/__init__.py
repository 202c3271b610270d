"""What every part that works on a device shares.

transfer.py moves numbers between host and device without a wait; capability.py says what a GPU can do.
"""
