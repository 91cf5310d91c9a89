"""Models, data and the trainer."""

import os

# MKL's products depend on where in memory their operands lie, on AMD's processors at least, so a resumed run would
# differ in the last bits. It reads this at its first product.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
