// y = x W^T for 1 .. 8 NT rows of x. W streams once through shared memory; see README.md for the schedule.
//
// Compiled with NT (blocks of 8 rows of x), RAW (1: bf16 weights, the twin) and SLOTS (of a warp's ring).
constexpr int WARPS = 8;
constexpr int WK = 4;                // warps that share the columns of a strip
constexpr int WP = WARPS / WK;       // strips that a group of CTAs takes at once
constexpr int TILES = 2 * WP * NT;   // accumulators of 16 rows x 8 tokens in a pass
constexpr int PIECES = TILES * 32;   // of 4 floats
constexpr int ADDERS = 2;            // warps that add what the others leave, while those go on
constexpr int THREADS = 32 * (WARPS + ADDERS);

// Shared memory, in this order.
constexpr u32 RING = WARPS * SLOTS * UNIT;
constexpr u32 PARTIAL = WK * PIECES * 16;
constexpr u32 INBOX = 2 * PIECES * 16;
constexpr u32 TABLE = 2048;
constexpr u32 BARS = WARPS * SLOTS * 8 + 64;

// Where a warp's next unit comes from: pass after pass, its columns from first to last.
struct Source {
    const u8* next;
    int left_in_pass, left_passes;
    int steps;
    long long pass_stride;  // bytes from the last unit of a pass to the first of the next

    __device__ __forceinline__ bool more() const { return left_passes > 0; }
    __device__ __forceinline__ void advance() {
        next += UNIT;
        if (--left_in_pass == 0) {
            left_in_pass = steps;
            --left_passes;
            next += pass_stride;
        }
    }
};

// x, columns of tiles lo .. hi - 1, into shared memory in the order of the matrix instruction.
__device__ __forceinline__ void place_x(u8* to, const u16* x, int m, int k, long long stride, int lo, int hi) {
    const bool wide = (stride & 7) == 0 && (reinterpret_cast<u64>(x) & 15) == 0;
    const int count = (hi - lo) * NT * 64;
#pragma unroll 4
    for (int q = threadIdx.x; q < count; q += THREADS) {
        const int eighth = q & 7, row = (q >> 3) % (8 * NT), tile = (q >> 3) / (8 * NT);
        const int column = (lo + tile) * COLUMNS + 8 * eighth;
        const u16* from = x + row * stride + column;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (row < m) {
            if (wide && column + 8 <= k) {
                v = *reinterpret_cast<const uint4*>(from);
            } else {
                u32 word[4] = {0, 0, 0, 0};
                for (int i = 0; i < 8; ++i)
                    if (column + i < k) word[i >> 1] |= static_cast<u32>(from[i]) << 16 * (i & 1);
                v = make_uint4(word[0], word[1], word[2], word[3]);
            }
        }
        const int at = ((tile * NT + (row >> 3)) * 2 + (eighth & 1)) * 32 + (row & 7) * 4 + (eighth >> 1);
        *reinterpret_cast<uint4*>(to + 16 * at) = v;
    }
}

// What the adding warps do: sums over the warps of the CTA, then over the CTAs of the cluster, each in order.
__device__ __forceinline__ void add(const float4* partial, float4* inbox, u16* y, const int* row_of, u32 full, u32 empty,
                                    u32 arrived, u32 fetched, int passes, int cluster, int clusters, int m, int n,
                                    long long y_stride) {
    const int me = threadIdx.x - 32 * WARPS, lane = threadIdx.x & 31;
    const int rank = cluster_rank(), size = cluster_size(), share = PIECES / size;
    for (int pass = 0; pass < passes; ++pass) {
        const int half = pass & 1;
        const u32 phase = pass >> 1 & 1;
        float4* const box = inbox + half * PIECES;
        if (pass >= 2) bar_wait_cluster(fetched + 8 * half, phase ^ 1);
        bar_wait(full, pass & 1);
#pragma unroll
        for (int e = me; e < PIECES; e += 32 * ADDERS) {
            float4 sum = partial[e];
#pragma unroll
            for (int i = 1; i < WK; ++i) {
                const float4 v = partial[i * PIECES + e];
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
            }
            const int to = e / share;
            store16_cluster(shared_address(box + rank * share + e - to * share), to, sum);
        }
        __syncwarp();
        if (lane == 0) bar_arrive(empty);
        if (lane < size) bar_arrive_cluster(arrived + 8 * half, lane);
        __syncwarp();
        bar_wait_cluster(arrived + 8 * half, phase);
        for (int e = me; e < share; e += 32 * ADDERS) {
            float4 sum = box[e];
            for (int from = 1; from < size; ++from) {
                const float4 v = box[from * share + e];
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
            }
            const int piece = rank * share + e;
            const int at = piece & 31, tile = piece >> 5;  // tile: (strip, half, block of tokens)
            const int row = ((cluster + pass * clusters) * WP + tile / (2 * NT)) * ROWS + (tile / NT & 1) * 16 + (at >> 2);
            const int token = tile % NT * 8 + (at & 3) * 2;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int r = row + (i >> 1) * 8, c = token + (i & 1);
                const float v = i == 0 ? sum.x : i == 1 ? sum.y : i == 2 ? sum.z : sum.w;
                if (r < n && c < m) y[c * y_stride + (row_of ? row_of[r] : r)] = to_bf16(v);
            }
        }
        __syncwarp();
        if (pass + 2 < passes && lane < size) bar_arrive_cluster(fetched + 8 * half, lane);
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    weight12_stream(const u8* __restrict__ w, const u64* __restrict__ palettes, const u16* x, u16* y,
                    const int* __restrict__ row_of, int m, int n, int k, int tiles, int groups, long long x_stride,
                    long long y_stride, int early) {
    extern __shared__ __align__(128) u8 smem[];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int wk = warp % WK, wp = warp / WK;
    const int rank = cluster_rank(), size = cluster_size();
    const int cluster = blockIdx.x / size, clusters = gridDim.x / size;

    u8* const ring = smem + warp * SLOTS * UNIT;
    float4* const partial = reinterpret_cast<float4*>(smem + RING);
    float4* const inbox = reinterpret_cast<float4*>(smem + RING + PARTIAL);
    u64* const table = reinterpret_cast<u64*>(smem + RING + PARTIAL + INBOX);
    const u32 bars = shared_address(smem + RING + PARTIAL + INBOX + TABLE) + warp * SLOTS * 8;
    u8* const xs = smem + RING + PARTIAL + INBOX + TABLE + BARS;

    // Columns of this warp and of this CTA: a function of K and the cluster's size only.
    const int parts = size * WK, part = rank * WK + wk;
    const int lo = tiles * part / parts, hi = tiles * (part + 1) / parts;
    const int cta_lo = tiles * (rank * WK) / parts, cta_hi = tiles * (rank * WK + WK) / parts;
    const int passes = cluster < groups ? (groups - 1 - cluster) / clusters + 1 : 0;

    Source source;
    source.steps = source.left_in_pass = hi - lo;
    source.left_passes = hi > lo ? passes : 0;
    source.next = w + (static_cast<long long>(cluster * WP + wp) * tiles + lo) * UNIT;
    source.pass_stride = (static_cast<long long>(clusters) * WP * tiles - source.steps) * UNIT;

    const u32 full = shared_address(smem + RING + PARTIAL + INBOX + TABLE) + WARPS * SLOTS * 8;
    const u32 empty = full + 8, arrived = full + 16, fetched = full + 32;  // the last two per half of the inbox

    if (warp < WARPS) {
        if (lane == 0) {
            for (int s = 0; s < SLOTS; ++s) bar_init(bars + 8 * s, 1);
            bar_publish();
            for (int s = 0; s < SLOTS && source.more(); ++s) {
                bar_expect(bars + 8 * s, UNIT);
                bulk_load(shared_address(ring + s * UNIT), source.next, UNIT, bars + 8 * s);
                source.advance();
            }
        }
    } else if (warp == WARPS) {
        if (lane == 0) {
            bar_init(full, WARPS);
            bar_init(empty, ADDERS);
            for (int i = 0; i < 2; ++i) bar_init(arrived + 8 * i, size * ADDERS), bar_init(fetched + 8 * i, size * ADDERS);
            bar_publish();
        }
    }
    __syncwarp();
    if (early) let_next_grid_start();
    cluster_arrive();
    if (!RAW && threadIdx.x < 256) table[threadIdx.x] = palettes[threadIdx.x];
    wait_for_previous_grid();
    place_x(xs, x, m, k, x_stride, cta_lo, cta_hi);
    __syncthreads();
    cluster_wait();

    if (warp >= WARPS) {
        add(partial, inbox, y, row_of, full, empty, arrived, fetched, passes, cluster, clusters, m, n, y_stride);
        return;
    }

    const u32 xs_lane = shared_address(xs) + 16 * lane + (lo - cta_lo) * NT * 1024;
    const u32 table_at = shared_address(table), ring_at = shared_address(ring);
    int slot = 0;
    u32 parity = 0;
    for (int pass = 0; pass < passes; ++pass) {
        float acc[2][NT][4];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int b = 0; b < NT; ++b)
#pragma unroll
                for (int c = 0; c < 4; ++c) acc[i][b][c] = 0.0f;

        u32 x_at = xs_lane;
        for (int step = lo; step < hi; ++step) {
            bar_wait(bars + 8 * slot, parity);
            Share weights;
            weights.load(ring_at + slot * UNIT, table_at, lane);
            reads_before_copies();
            __syncwarp();
            if (lane == 0 && source.more()) {
                bar_expect(bars + 8 * slot, UNIT);
                bulk_load(ring_at + slot * UNIT, source.next, UNIT, bars + 8 * slot);
                source.advance();
            }
            __syncwarp();
            if (++slot == SLOTS) slot = 0, parity ^= 1;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                u32 a[2][2][4];
                weights.operands(0, h, a[0][0], a[0][1]);
                weights.operands(1, h, a[1][0], a[1][1]);
#pragma unroll
                for (int b = 0; b < NT; ++b) {
                    const uint4 v = load16(x_at + (b * 2 + h) * 512);
                    mma(acc[0][b], a[0][0], v.x, v.y);
                    mma(acc[1][b], a[1][0], v.x, v.y);
                    mma(acc[0][b], a[0][1], v.z, v.w);
                    mma(acc[1][b], a[1][1], v.z, v.w);
                }
            }
            x_at += NT * 1024;
        }

        if (pass > 0) bar_wait(empty, pass - 1 & 1);
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int b = 0; b < NT; ++b)
                partial[(wk * TILES + (wp * 2 + i) * NT + b) * 32 + lane] =
                    make_float4(acc[i][b][0], acc[i][b][1], acc[i][b][2], acc[i][b][3]);
        __syncwarp();
        if (lane == 0) bar_arrive(full);
        __syncwarp();
    }
    if (!early) let_next_grid_start();
}
