"""Products of 16-bit matrices with few rows of activations.

launches.py        the launch shapes of all of them
launch_tables.py   the fastest launches measured per device (measured/)
epilogue.py        norm, bias, activation and residual sum in a product's kernel
gemv.py            one row of activations, or up to four
splits.py          sums that several programs share
splitk.py          a few rows on tensor cores, K split among programs
layouts.py         where the values of kernels in Gluon lie
few_rows.py        2 to 16 rows, in Gluon
streamed_gemv.py   one row, with weights prefetched into shared memory, in Gluon
streamed_rows.py   2 to 32 rows on the same stream, in Gluon
dispatch.py        choose a kernel for a product
"""
