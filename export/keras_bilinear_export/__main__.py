"""`python -m keras_bilinear_export`."""

import sys

from keras_bilinear_export.cli import main

sys.exit(main())
