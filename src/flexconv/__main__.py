"""`python -m flexconv` is the command `flexconv`."""

from .cli import main

if __name__ == "__main__":
    main()
