"""`python -m lrformer`: the same as the command `lrformer`."""

from lrformer.cli import main

if __name__ == "__main__":
    main()
