"""`python -m flexconv.cli`, the same as `python -m flexconv`; both also work with `torchrun -m`."""

from . import main

if __name__ == "__main__":
    main()
