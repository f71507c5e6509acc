// The unit of projections of five to sixteen rows.
#include "muser.cuh"
#include "blocks.cuh"
#include "source.cuh"
#include "matvec.cuh"
#include "batch.cuh"
