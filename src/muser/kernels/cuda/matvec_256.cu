// The unit of projections of one to four rows by K-quants.
#include "muser.cuh"
#include "blocks.cuh"
#include "quantise.cuh"
#include "matvec.cuh"
MATVECS(256, K256)
