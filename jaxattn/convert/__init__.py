"""Weights and live modules from PyTorch to Flax and back."""

from .optimizer_moments import optimizer_state as optimizer_state
from .optimizers import optimizer as optimizer
from .parts import Twins as Twins
from .parts import refusal_report as refusal_report
from .parts import twins as twins
from .port import PortReport as PortReport
from .port import port_report as port_report
from .registry import known_classes as known_classes
from .registry import register as register
from .schedules import schedules as schedules
