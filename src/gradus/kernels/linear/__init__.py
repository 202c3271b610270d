"""Products of 16-bit matrices with few rows of activations.

epilogue.py          norm, bias, activation and residual sum in a product's kernel; the reference in torch
gemv.py              one row of activations, or up to four
splits.py            sums that several programs share
splitk.py            a few rows on tensor cores, K split among programs
few_rows_launch.py   launch shapes of few_rows
few_rows.py          2 to 16 rows, in Gluon
streamed_launch.py   launch shapes of the streamed kernels
streamed_gemv.py     one row, with weights prefetched into shared memory, in Gluon
streamed_rows.py     2 to 16 rows on the same stream, in Gluon
launch_tables.py     the fastest launches measured per device (measured/)
dispatch.py          choose a kernel for a product
"""
