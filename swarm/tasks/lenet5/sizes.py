"""The nets' sizes, the same in every framework."""

from __future__ import annotations

from typing import NamedTuple

KERNEL = 5
CONV1, CONV2 = 6, 16  # channels
MAP = 5  # side of the last feature maps
DENSE1, DENSE2 = 120, 84
HIDDEN = 64  # of the MLP


class Model(NamedTuple):
    convolutions: bool  # LeNet-5; else the MLP
    batch_norm: bool  # after each convolution
    dropout: float
