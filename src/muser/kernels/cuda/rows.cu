// The unit of row-wise operators, and of reading for its own sake.
#include "muser.cuh"
#include "rows.cuh"
#include "embed.cuh"
#include "heads.cuh"
#include "pick.cuh"
#include "read.cuh"
