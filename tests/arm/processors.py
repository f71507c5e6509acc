"""Processors that qemu plays, and the instruction sets that each must be found to have.

SVE is switched off: emulated, it makes NumPy's products forty times as slow, and no kernel uses it.
"""

BEST = "max,sve=off"
SETS = {"cortex-a72": ("c",), "cortex-a76": ("c", "neon"), BEST: ("c", "neon", "neon_i8mm")}
