// The unit of projections of many rows on warpgroups.
#include "muser.cuh"
#include "tiles.cuh"
#include "gemm90.cuh"
