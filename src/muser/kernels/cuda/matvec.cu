// The unit of projections of one to four rows.
#include "muser.cuh"
#include "blocks.cuh"
#include "source.cuh"
#include "matvec.cuh"

// `most` threads bound the registers; that of K-quants and one row leaves some to a kernel that quantises a row, where
// the compiler does with so few.
#if __CUDA_ARCH__ < 1000
#define FEW_REGISTERS 768
#define MANY_REGISTERS 512
#else
#define FEW_REGISTERS 640
#define MANY_REGISTERS 384
#endif
#define MATVEC(name, Form, rows, most) \
    KERNEL BOUNDS(most, 1) name(const __grid_constant__ Matvec a) { matvec<Form, rows>(a); }
MATVEC(matvec_256_1, K256, 1, FEW_REGISTERS)
MATVEC(matvec_256_4, K256, 4, MANY_REGISTERS)
MATVEC(matvec_32_1, K32, 1, 512)
MATVEC(matvec_32_4, K32, 4, 512)
MATVEC(matvec_grid_1, Grid, 1, 512)
MATVEC(matvec_grid_4, Grid, 4, 512)
#undef MATVEC
