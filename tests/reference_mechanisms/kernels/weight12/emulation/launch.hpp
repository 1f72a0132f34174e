// Run the kernel above: one cluster behind the other, the threads of each as the seed says. Returns the faults seen.
namespace machine {
struct Arguments {
    const u8 *weights, *numbers, *palettes, *highs;
    const u16* x;
    u16* y;
    int m, n, k, tiles, groups;
    long long x_stride, y_stride;
};
inline Arguments arguments;

inline void body() {
    const Arguments& a = arguments;
    weight12_stream(a.weights, a.numbers, a.palettes, a.highs, a.x, a.y, a.m, a.n, a.k, a.tiles, a.groups, a.x_stride,
                    a.y_stride);
    now->ended = true;
    swapcontext(&now->context, &scheduler);
}
}  // namespace machine

extern "C" int launch(const void* weights, const void* numbers, const void* palettes, const void* highs, const void* x,
                      void* y, int m, int n, int k, int tiles, int groups, long long x_stride, long long y_stride,
                      int clusters, int shared_bytes, unsigned seed) {
    using namespace machine;
    arguments = {static_cast<const u8*>(weights), static_cast<const u8*>(numbers), static_cast<const u8*>(palettes),
                 static_cast<const u8*>(highs), static_cast<const u16*>(x), static_cast<u16*>(y), m, n, k, tiles, groups,
                 x_stride, y_stride};
    grid.x = clusters * CLUSTER;
    std::mt19937 draw(seed);
    int faults = 0;
    for (int number = 0; number < clusters; ++number) {
        Cluster made;
        cluster = &made;
        made.ctas.resize(CLUSTER);
        for (Cta& one : made.ctas) one.shared.assign(shared_bytes, 0xFF), one.warps = std::vector<Warp>(WARPS);
        for (int i = 0; i < CLUSTER * THREADS; ++i) {
            auto thread = std::make_unique<Thread>();
            thread->stack = std::make_unique<u8[]>(STACK);
            thread->rank = i / THREADS;
            thread->thread.x = i % THREADS, thread->block.x = number * CLUSTER + i / THREADS;
            getcontext(&thread->context);
            thread->context.uc_stack.ss_sp = thread->stack.get(), thread->context.uc_stack.ss_size = STACK;
            makecontext(&thread->context, body, 0);
            made.threads.push_back(std::move(thread));
        }
        std::vector<Thread*> order;
        for (auto& thread : made.threads) order.push_back(thread.get());
        for (int sweeps = 0; !order.empty(); ++sweeps) {
            if (sweeps == 1 << 16) return -1;  // they wait for each other
            std::shuffle(order.begin(), order.end(), draw);
            for (Thread* one : order) now = one, swapcontext(&scheduler, &one->context);
            std::erase_if(order, [](Thread* one) { return one->ended; });
        }
        faults += made.faults;
    }
    return faults;
}
