// Read `blocks` times 64 KiB once and keep nothing: what memory gives to a kernel that does nothing else.
constexpr int THREADS = 512;
constexpr int LOADS = 8;  // of a thread in flight

extern "C" __global__ void __launch_bounds__(THREADS) weight12_read(const uint4* data, int blocks, unsigned* sink) {
    unsigned seen = 0;
    for (int block = blockIdx.x; block < blocks; block += gridDim.x) {
        const uint4* const from = data + static_cast<long long>(block) * THREADS * LOADS + threadIdx.x;
        uint4 v[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i)
            asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w)
                         : "l"(from + i * THREADS));
#pragma unroll
        for (int i = 0; i < LOADS; ++i) seen ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (seen == 0x9E3779B9u) *sink = seen;  // nearly never, but the compiler cannot know
}
