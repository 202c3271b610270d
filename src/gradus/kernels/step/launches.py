"""A step's operations as kernels, for a GPU: one launch each."""

from gradus.kernels.core.overlap import early_launches
from gradus.kernels.step.decode_rows import decode_rows
from gradus.kernels.step.prompt_history import keep_prompts
from gradus.kernels.step.rows import StepOperations
from gradus.kernels.step.verify import accept_drafts, pack_rows

LAUNCHES = StepOperations(decode_rows, pack_rows, accept_drafts, keep_prompts, early_launches)
