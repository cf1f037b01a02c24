"""torch.nn.Transformer: here the oracle is torch itself.

output = decoder(tgt, encoder(src)); both stacks end on a norm of their own, also where their layers end on one. Boolean
masks mean True = blocked. Run it inside `torchref.core.plain_path.plain_path()`.

Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.Transformer.html
"""

from torch.nn import Transformer as Transformer
