// The unit of projections of one to four rows.
#include "muser.cuh"
#include "blocks.cuh"
#include "source.cuh"
#include "matvec.cuh"

#define MATVEC(name, Form, rows) \
    KERNEL BOUNDS(rows == 4 ? 384 : 512, 1) name(const __grid_constant__ Matvec a) { matvec<Form, rows>(a); }
MATVEC(matvec_256_1, K256, 1)
MATVEC(matvec_256_4, K256, 4)
MATVEC(matvec_32_1, K32, 1)
MATVEC(matvec_32_4, K32, 4)
MATVEC(matvec_grid_1, Grid, 1)
MATVEC(matvec_grid_4, Grid, 4)
#undef MATVEC
