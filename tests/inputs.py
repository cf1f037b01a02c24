"""NumPy inputs from a named seed, and the weights of an oracle made random everywhere."""

import zlib

import numpy as np

# Distinct and prime, so that no swapped axis can pass.
B, T, S, K, G, H, V, D = 3, 5, 7, 2, 4, 11, 13, 17


def generator(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def randomise(torch_module, name: str):
    """Every parameter random and asymmetric, biases and norms included: ones and zeros hide bugs."""
    import torch

    rng = generator(f"weights of {name}")
    with torch.no_grad():
        for key, parameter in torch_module.named_parameters():
            centre = 1.0 if "norm" in key.lower() and key.endswith("weight") else 0.0
            spread = 0.3 if parameter.ndim < 2 else 1.0 / np.sqrt(parameter.shape[-1])
            values = centre + spread * rng.normal(size=tuple(parameter.shape))
            parameter.copy_(torch.from_numpy(values).to(parameter.dtype))
    return torch_module.eval()
