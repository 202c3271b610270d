"""A step's operations as kernels, for a GPU: one launch each."""

import numpy as np
import torch
from torch import Tensor

from gradus.device.transfer import upload_parts
from gradus.engine.plan import Decodes
from gradus.kernels.core.overlap import early_launches
from gradus.kernels.step.decode_rows import decode_rows
from gradus.kernels.step.prompt_history import keep_prompts
from gradus.kernels.step.rows import StepOperations
from gradus.kernels.step.verify import accept_drafts, pack_rows


def inputs(decodes: Decodes, device: torch.device) -> Tensor:
    """Send slots, limits and drafts to the device. Returns int32 [3, B]."""
    drafts = decodes.drafts if len(decodes.drafts) else np.zeros(len(decodes), np.int64)
    return torch.stack(upload_parts([decodes.slots, decodes.limits, drafts], torch.int32, device))


LAUNCHES = StepOperations(inputs, decode_rows, pack_rows, accept_drafts, keep_prompts, early_launches)
