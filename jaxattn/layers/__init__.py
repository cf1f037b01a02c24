"""The Flax layers that every module is made of, with PyTorch's constants instead of Flax's."""

from .activations import Activation as Activation
from .activations import PReLU as PReLU
from .dropout import Dropout as Dropout
from .dropout import dropout_key as dropout_key
from .dropping import Dropping as Dropping
from .embedding import Embedding as Embedding
from .frozen import FrozenParam as FrozenParam
from .frozen import is_parameter as is_parameter
from .linear import Initializer as Initializer
from .linear import Linear as Linear
from .linear import linear as linear
from .linear import parameter as parameter
from .linear import torch_bias_init as torch_bias_init
from .linear import torch_kernel_init as torch_kernel_init
from .norms import RMSNorm as RMSNorm
from .norms import layer_norm as layer_norm
from .sequential import Attend as Attend
from .sequential import Sequential as Sequential
from .sequential import distinct as distinct
from .sequential import repeated_names as repeated_names
