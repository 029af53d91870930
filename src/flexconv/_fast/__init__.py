"""Faster versions of functions of the core, found through `flexconv._registry`; everything works without them.

Importing this package registers them. It must import neither Triton nor the compiler.
"""

from . import products as products
