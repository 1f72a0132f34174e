// x in shared memory, for as long as a CTA lives: row by row for mma.sync, in slabs for wgmma.
// Eight values of a row of x, zeros from column k on.
__device__ __forceinline__ uint4 eight_of(const u16* row, int column, int k, bool wide) {
    if (wide && column + 8 <= k) return load16_global(row + column);
    u32 word[4] = {0, 0, 0, 0};
    for (int i = 0; i < 8; ++i)
        if (column + i < k) word[i >> 1] |= static_cast<u32>(load2_global(row + column + i)) << 16 * (i & 1);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// Rows of x, from column `first` to `last`, into shared memory, one every `pitch` bytes; zeros from column k on. Rows from
// m on stay as they are: they reach only columns of the product that are not kept. A warp loads two rows at once, and
// clusters begin at different rows, as all want the same lines.
__device__ __forceinline__ void place_x(u32 to, u32 pitch, const u16* x, int m, int k, long long stride, int first, int last,
                                        int turn) {
    constexpr int CHUNKS = 4;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const bool wide = (stride & 7) == 0 && (reinterpret_cast<u64>(x) & 15) == 0;
    const int count = (last - first) / 8;
    for (int i = warp; i < m; i += 2 * WARPS) {
        for (int j = lane; j < count; j += 32 * CHUNKS) {
            uint4 v[2][CHUNKS];
            u32 at[2][CHUNKS];
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int c = 0; c < CHUNKS; ++c) {
                    const int chunk = j + 32 * c, row = (i + r * WARPS + turn) % m;
                    const bool wanted = i + r * WARPS < m && chunk < count;
                    at[r][c] = wanted ? to + row * pitch + 16 * chunk : 0;
                    if (wanted) v[r][c] = eight_of(x + row * stride, first + 8 * chunk, k, wide);
                }
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int c = 0; c < CHUNKS; ++c)
                    if (at[r][c]) store16(at[r][c], v[r][c]);
        }
    }
}

// Whether rows lie at multiples of 16 bytes and fill whole units.
[[maybe_unused]] __device__ __forceinline__ bool comes_whole(const u16* x, long long stride, int k) {
    return (stride & 7) == 0 && (reinterpret_cast<u64>(x) & 15) == 0 && k % COLUMNS == 0;
}

// The same rows and columns, whole, by bulk copies of one warp, which `bell` counts.
__device__ __forceinline__ void ask_for_x(u32 to, u32 pitch, u32 bell, const u16* x, int m, long long stride, int first,
                                          int last) {
    const int lane = threadIdx.x & 31;
    const u32 bytes = 2 * (last - first);
    if (lane == 0) mail_expect(bell, m * bytes);
    __syncwarp();
    for (int i = lane; i < m; i += 32) bulk_copy(to + i * pitch, x + i * stride + first, bytes, bell);
}

#if WGMMA
// wgmma takes x from shared memory itself. The 64 columns of a unit are eight slabs: sixteen bytes for each token, eight
// tokens a core matrix. Lanes hold weights of sixteen columns each, t = 0 .. 3, in runs h = 0, 1 of eight, in pairs
// p = 0 .. 3. Slab 2p + h holds pair p of run h of every t, so instruction (h, s) takes slabs 4s + h and 4s + 2 + h.
// A warp stores words of one token and four units at once: sixteen bytes behind a slab and 32 behind a unit spread
// them over all banks.
constexpr u32 SLAB = 128 * NT + 16;
constexpr u32 X_UNIT = 8 * SLAB + 32;

// Two slabs: where the first lies, how far the second, and how far eight tokens, in sixteen bytes. The first two make a
// word, to which steps may be added.
__device__ __forceinline__ u32 slabs_at(u32 at) { return 2 * SLAB / 16 << 16 | at / 16; }
__device__ __forceinline__ u64 slab_descriptor(u32 slabs) { return static_cast<u64>(128 / 16) << 32 | slabs; }

// How the warps that multiply by the same columns take them: rows in turn, so much in flight at once.
constexpr int TAKERS = WARPS / WK, ROWS_EACH = 8 * NT / TAKERS;
constexpr int ROWS_AT_ONCE = ROWS_EACH < 8 ? ROWS_EACH : 8, CHUNKS_AT_ONCE = ROWS_AT_ONCE < 8 ? 4 : 2;

// Whether x of m tokens and so many eights of columns is taken at once.
[[maybe_unused]] __device__ __forceinline__ bool at_once(int m, int count) {
    return m <= TAKERS * ROWS_AT_ONCE && count <= 32 * CHUNKS_AT_ONCE;
}

// Columns `first` to `last` of x, by the warps that multiply by them, of which this is number `taker`; else as `place_x`.
// If they have `landed` where the slabs will be, row by row, all are taken up at once, and all meet before one is put down.
template <class Meet>
__device__ __forceinline__ void place_slabs(u32 to, const u16* x, int m, int k, long long stride, int first, int last,
                                            int taker, int turn, bool landed, const Meet& meet) {
    constexpr int ROWS = ROWS_AT_ONCE, CHUNKS = CHUNKS_AT_ONCE;
    const int lane = threadIdx.x & 31, offset = turn % m, count = (last - first) / 8;
    const bool wide = (stride & 7) == 0 && (reinterpret_cast<u64>(x) & 15) == 0;
    const auto place = [&](int i, int j, const auto& take, const auto& between) {
        uint4 v[ROWS][CHUNKS];
        u32 at[ROWS][CHUNKS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const int chunk = j + 32 * c, shifted = i + r * TAKERS + offset, row = shifted < m ? shifted : shifted - m;
                const bool wanted = i + r * TAKERS < m && chunk < count;
                at[r][c] = wanted ? to + (chunk >> 3) * X_UNIT + (chunk & 1) * SLAB + 16 * row + (chunk >> 1 & 3) * 4 : 0;
                if (wanted) v[r][c] = take(row, chunk);
            }
        between();
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c)
                if (at[r][c]) {
                    store4(at[r][c], v[r][c].x);
                    store4(at[r][c] + 2 * SLAB, v[r][c].y);
                    store4(at[r][c] + 4 * SLAB, v[r][c].z);
                    store4(at[r][c] + 6 * SLAB, v[r][c].w);
                }
    };
    if (landed) {
        place(taker, lane, [&](int row, int chunk) { return load16(to + (row * count + chunk) * 16); }, meet);
        return;
    }
    for (int i = taker; i < m; i += TAKERS * ROWS)
        for (int j = lane; j < count; j += 32 * CHUNKS)
            place(i, j, [&](int row, int chunk) { return eight_of(x + row * stride, first + 8 * chunk, k, wide); }, [] {});
}
#endif
