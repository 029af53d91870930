"""`python -m flexconv`: the same command as `flexconv`."""

from .cli import main

if __name__ == "__main__":
    main()
