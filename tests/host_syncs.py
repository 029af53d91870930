"""Detect synchronisations with the host without a GPU."""

from torch.utils._python_dispatch import TorchDispatchMode

#: Operations whose result the host needs, or that copy a new constant to the device.
SYNCS = {"_local_scalar_dense", "lift_fresh", "nonzero", "masked_select", "_unique2", "equal"}


class HostSyncs(TorchDispatchMode):
    """Records the names of operations that would synchronise a GPU with the host."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.found += [name] * (name in SYNCS)
        return func(*args, **(kwargs or {}))
