"""`python -m gradus` is the same command as `gradus`."""

import sys

from gradus.cli import main

sys.exit(main())
