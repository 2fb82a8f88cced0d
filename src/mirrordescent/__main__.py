"""`python -m mirrordescent` runs the command `rmd`."""

import sys

from mirrordescent.cli import main

if __name__ == "__main__":
    sys.exit(main())
