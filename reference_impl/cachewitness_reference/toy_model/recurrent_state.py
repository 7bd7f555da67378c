"""What a recurrent layer carries from token to token, and which tokens of a padded batch count.

A batch of unequal requests is padded on the right. A padding token must leave no trace: the state
of a row is the one after the row's own last token, whatever stands behind it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RecurrentState(NamedTuple):
    """The state after a token: conv [B, K - 1, channels], the convolution's last inputs, and
    memory [B, H, ...].
    """

    conv: Tensor
    memory: Tensor


def counted(tokens: int, lengths: Tensor) -> Tensor:
    """Return which of `tokens` columns hold a row's own tokens [B, tokens]; `lengths` [B] counts
    them per row.
    """
    return torch.arange(tokens, device=lengths.device) < lengths[:, None]
