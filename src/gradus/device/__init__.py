"""What every part that works on a device shares.

Read in this order:

    transfer.py   numbers moved between host and device without a wait
    threads.py    how a CPU's threads wait for one another
"""
