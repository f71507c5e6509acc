// The unit of the conformance run's primitives.
#include "muser.cuh"
#include "primitives.cuh"
