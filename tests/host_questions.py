"""What a GPU would have to stop for, seen without one: operations whose result the host needs, and new constants."""

from torch.utils._python_dispatch import TorchDispatchMode

QUESTIONS = {"_local_scalar_dense", "lift_fresh", "nonzero", "masked_select", "_unique2", "equal"}


class Questions(TorchDispatchMode):
    """Notes them while it is active, by name."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.asked += [name] * (name in QUESTIONS)
        return func(*args, **(kwargs or {}))
