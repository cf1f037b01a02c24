"""Structural copies of PyTorch modules: the same classes around tensors of their own, the original left alone."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from .object_copy import ObjectCopier

#: (tensor, whether it is a parameter) → the dtype of its copy.
DtypeOf = Callable[[Any, bool], Any]

_NUMPY_RANDOM = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)


def structural_copy(value: Any, dtype_of: DtypeOf | None = None) -> Any:
    """A copy of a torch module, or of anything that holds some, which shares no state with the original."""
    return Copier(dtype_of).copy(value)


def floating_as(dtype: str) -> DtypeOf:
    """Every floating parameter and buffer in this dtype of torch."""
    import torch

    return lambda tensor, is_parameter: getattr(torch, dtype) if tensor.is_floating_point() else tensor.dtype


class Copier(ObjectCopier):
    """Copies torch modules and what refers to them.

    A module keeps its class, its mode, its hooks and its attributes. Parameters and buffers are copied in the dtype
    that is asked for, other tensors in their own; tensors that share memory go on sharing it. What refers to a module
    (lists, bound methods, closures, weak references, the module itself) refers to its copy.

    Args:
        dtype_of: dtypes of parameters and buffers; None leaves them as they are.
        generators: copies of random generators by the identity of the original; copies of modules that are made with
            one dictionary draw from the same generators, one after the other.
    """

    def __init__(self, dtype_of: DtypeOf | None = None, generators: dict[int, Any] | None = None):
        super().__init__()
        self._dtype_of = dtype_of
        self._generators = {} if generators is None else generators
        self._storages: dict[Any, Any] = {}

    def copy_object(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            return self._tensor(value, value.dtype)
        if isinstance(value, (torch.Generator, *_NUMPY_RANDOM)):
            return self.keep(value, self._generator(value))
        return super().copy_object(value)

    def is_copied(self, value: Any) -> bool:
        import torch

        return isinstance(value, torch.nn.Module) or super().is_copied(value)

    def _module(self, module: Any) -> Any:
        import torch

        if isinstance(module, torch.jit.ScriptModule):
            return self.keep(module, self._scripted(module))
        # Parameters first: an attribute that refers to one must find its copy, in the parameter's dtype.
        for part in torch.nn.Module.modules(module):
            if not isinstance(part, torch.jit.ScriptModule):
                self._weights(part)
        made = self.keep(module, object.__new__(type(module)))
        for name, value in vars(module).items():
            made.__dict__[name] = self.copy(value)
        return made

    def _weights(self, module: Any) -> None:
        for tensors, trained in ((module._parameters, True), (module._buffers, False)):
            for tensor in tensors.values():
                if tensor is not None and id(tensor) not in self.memo:
                    self._tensor(tensor, self._dtype(tensor, trained))

    def _scripted(self, module: Any) -> Any:
        made = copy.deepcopy(module)
        for tensors, trained in ((made.parameters(), True), (made.buffers(), False)):
            for tensor in tensors:
                tensor.data = tensor.data.to(self._dtype(tensor, trained))
        return made

    def _dtype(self, tensor: Any, is_parameter: bool) -> Any:
        return tensor.dtype if self._dtype_of is None else self._dtype_of(tensor, is_parameter)

    def _tensor(self, tensor: Any, dtype: Any) -> Any:
        import torch

        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return super().copy_object(tensor)
        with torch.inference_mode(False), torch.no_grad():
            data = self._data(tensor, dtype)
            if type(tensor) is torch.nn.Parameter:
                made = torch.nn.Parameter(data, requires_grad=tensor.requires_grad)
            else:
                made = data.requires_grad_(tensor.requires_grad and tensor.is_leaf)
        self.keep(tensor, made)
        for name, value in vars(tensor).items():
            setattr(made, name, self.copy(value))
        return made

    def _data(self, tensor: Any, dtype: Any) -> Any:
        """The numbers in memory of their own, laid out as they were; once for all tensors that share it."""
        import torch

        plain = tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_quantized or tensor.is_nested)
        if not plain or tensor.is_conj() or tensor.is_neg() or tensor.untyped_storage().data_ptr() == 0:
            return tensor.detach().to(dtype, copy=True)
        storage = tensor.untyped_storage()
        place = (storage.data_ptr(), storage.nbytes(), tensor.device, tensor.dtype, dtype)
        if place not in self._storages:
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            whole.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
            self._storages[place] = whole.to(dtype, copy=True)
        view = self._storages[place].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        return view.data  # with a version counter of its own

    def _generator(self, value: Any) -> Any:
        if id(value) not in self._generators:
            made = value.clone_state() if hasattr(value, "clone_state") else copy.deepcopy(value)
            self._generators[id(value)] = made
        return self._generators[id(value)]
