// The unit of projections of one to four rows by blocks of 32.
#include "muser.cuh"
#include "blocks.cuh"
#include "quantise.cuh"
#include "matvec.cuh"
MATVECS(32, K32)
