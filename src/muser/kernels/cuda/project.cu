// The unit of projections of few rows, and of weights finding their place.
#include "muser.cuh"
#include "blocks.cuh"
#include "place.cuh"
#include "quantise.cuh"
#include "matvec.cuh"
