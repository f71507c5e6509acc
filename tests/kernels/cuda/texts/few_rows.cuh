// All forms of matvec.cuh in one unit; the package has a unit for each.
MATVECS(256, K256)
MATVECS(q4k, K4)
MATVECS(32, K32)
MATVECS(grid, Grid)
