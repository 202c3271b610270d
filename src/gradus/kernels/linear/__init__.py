"""Products of 16-bit matrices with few rows of activations.

gemv.py              one row per program, all of a matrix row at once
splits.py            sums that several programs share
skinny.py            a few rows on tensor cores, K split among programs
few_rows_launch.py   launch shapes of
few_rows.py          2 to 16 rows, in Gluon
streamed_launch.py   launch shapes of
streamed_gemv.py     one row; its weights are on their way before the row is there, in Gluon
streamed_rows.py     2 to 16 rows on such a stream
launch_tables.py     what was measured (measured/)
dispatch.py          which of these a product uses
"""
