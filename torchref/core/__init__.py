"""Functions on tensors: heads, masks, the attention formula, and the switch for torch's fast path."""
