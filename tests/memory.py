"""How much memory tensors take."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Memory(TorchDispatchMode):
    """Counts the bytes of tensors that are made inside of it: those alive now, and the most there were at once.

    What lies in files takes disk and page cache, and does not count.
    """

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.alive = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {storage._cdata for storage in _storages((args, kwargs))}
        found = func(*args, **(kwargs or {}))
        for storage in _storages(found) if func is not torch.ops.aten.from_file.default else ():
            if storage._cdata not in given | self.alive:  # neither a view nor in place
                self.alive.add(storage._cdata)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        return found

    def _gone(self, key, size):
        self.alive.discard(key)
        self.now -= size


def _storages(nested):
    return [each.untyped_storage() for each in tree_leaves(nested) if isinstance(each, torch.Tensor)]
