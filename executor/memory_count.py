"""Peak bytes of a step on a device that keeps no count: live tensor storages, each once.

The counterpart of CUDA's allocated bytes: it agrees with PyTorch's MemTracker to the byte.
Workspaces inside kernels and transport buffers inside gloo are not tensors and are not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StorageCount(TorchDispatchMode):
    """Counts the storages of every tensor made while it is active.

    Attributes
    ----------
    current_bytes, peak_bytes : int
    """

    def __init__(self, held: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.current_bytes = 0
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_
        for tensor in held:
            self._see(tensor)

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            weakref.finalize(storage, self._forget, key)
        self._set(key, storage.nbytes())

    def _set(self, key: int, size: int) -> None:
        self.current_bytes += size - self._sizes[key]
        self._sizes[key] = size
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)

    def _forget(self, key: int) -> None:
        self.current_bytes -= self._sizes.pop(key, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and look at what it made."""
        if any(issubclass(t, DTensor) for t in types):
            # DTensor runs the same operator on its local parts, which come back here.
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                self._see(getattr(leaf, "elem", leaf))
        return out

    def __enter__(self) -> StorageCount:
        count = self

        # FSDP2 frees gathered parameters by resizing their storage, which is no operator.
        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = count._resize(storage, size)
            if storage._cdata in count._sizes:
                count._set(storage._cdata, storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resize
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*error)
