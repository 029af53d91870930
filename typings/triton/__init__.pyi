# Kernels are launched by subscripts and are not checked, whether Triton is installed or not.
from typing import Any

def __getattr__(name: str) -> Any: ...
