// The unit of projections of one to four rows by float weights.
#include "muser.cuh"
#include "blocks.cuh"
#include "quantise.cuh"
#include "matvec.cuh"
MATVECS(grid, Grid)
