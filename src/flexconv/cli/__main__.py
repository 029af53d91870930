"""`python -m flexconv.cli`, which is also what torchrun wants: torchrun --nproc-per-node 2 -m flexconv.cli train …"""

from . import main

if __name__ == "__main__":
    main()
