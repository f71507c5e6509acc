// The unit of projections of many rows.
#include "muser.cuh"
#include "tiles.cuh"
#include "tile_rows.cuh"
#include "norm_tiles.cuh"
#include "gemm.cuh"
