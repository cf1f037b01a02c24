"""Proof that a PyTorch module and its Flax twin compute the same thing."""

from .compare import compare as compare
from .dropout_plan import DropoutPlan as DropoutPlan
from .report import ParityReport as ParityReport
from .trace import trace as trace
from .trace_report import TraceReport as TraceReport
from .train import train as train
from .train_report import TrainReport as TrainReport
