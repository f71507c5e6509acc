// The unit of weights finding their place, and of rows quantised.
#include "muser.cuh"
#include "blocks.cuh"
#include "place.cuh"
#include "quantise.cuh"
