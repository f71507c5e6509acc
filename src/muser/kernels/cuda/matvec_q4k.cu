// The unit of projections of one to four rows by Q4_K weights alone.
#include "muser.cuh"
#include "blocks.cuh"
#include "quantise.cuh"
#include "matvec.cuh"
MATVECS(q4k, K4)
