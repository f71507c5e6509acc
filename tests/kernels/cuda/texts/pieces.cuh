// The pieces that each block of gemm90.cuh would do. Grid as there, one thread a block.
struct Pieces {
    WideGemm gemm;
    int* out;  // [grid][most][3]: tile, from, to
    int most, rows;
};
KERNEL pieces(const __grid_constant__ Pieces a) {
    previous_kernel_done();
    WidePlan plan = a.gemm.gated ? wide_plan<true>(a.gemm, a.rows) : wide_plan<false>(a.gemm, a.rows);
    Piece piece;
    for (int i = 0; i < a.most && wide_piece(plan, i, piece); i++) {
        int* to = a.out + ((size_t)blockIdx.x * a.most + i) * 3;
        to[0] = piece.tile, to[1] = piece.from, to[2] = piece.to;
    }
}
