// The unit of row-wise operators.
#include "muser.cuh"
#include "rows.cuh"
#include "embed.cuh"
#include "heads.cuh"
#include "pick.cuh"
