// Stands in for CUDA where kernels run on the CPU: blocks one after the other, threads of a block as loops, or as fibres
// where a kernel has barriers.

#include <cmath>
#include <cstring>
#include <ucontext.h>

struct Words {
    unsigned long long at[32];
};
typedef void (*Kernel)(const Words);

static const int MOST_FIBRES = 256;
static const int STACK = 64 << 10;

struct Fibres {
    ucontext_t scheduler, fibres[MOST_FIBRES];
    bool done[MOST_FIBRES];
    char *stacks;
    Kernel kernel;
    const Words *words;
};

static thread_local int block_at, blocks_all, thread_at, threads_all;
static thread_local Fibres *fibres;

static void fibre() {
    fibres->kernel(*fibres->words);
    fibres->done[thread_at] = true;
    swapcontext(&fibres->fibres[thread_at], &fibres->scheduler);
}

static void barrier() {
    int own = thread_at;
    swapcontext(&fibres->fibres[own], &fibres->scheduler);
    thread_at = own;
}

static void run_block(Kernel kernel, const Words *words) {
    if (!fibres) {
        fibres = new Fibres;
        fibres->stacks = new char[(size_t)MOST_FIBRES * STACK];
    }
    fibres->kernel = kernel;
    fibres->words = words;
    for (int t = 0; t < threads_all; t++) {
        ucontext_t *context = &fibres->fibres[t];
        getcontext(context);
        context->uc_stack.ss_sp = fibres->stacks + (size_t)t * STACK;
        context->uc_stack.ss_size = STACK;
        context->uc_link = &fibres->scheduler;
        makecontext(context, fibre, 0);
        fibres->done[t] = false;
    }
    for (bool any = true; any;) {
        any = false;
        for (int t = 0; t < threads_all; t++) {
            if (fibres->done[t])
                continue;
            any = true;
            thread_at = t;
            swapcontext(&fibres->scheduler, &fibres->fibres[t]);
        }
    }
}

struct Entry {
    const char *name;
    Kernel kernel;
    bool barriers;
    Entry *next;
    static Entry *&all() {
        static Entry *first = 0;
        return first;
    }
    Entry(const char *name, Kernel kernel, bool barriers)
        : name(name), kernel(kernel), barriers(barriers), next(all()) {
        all() = this;
    }
};

extern "C" int volley_launch(const char *name, int blocks, int threads, const Words *words) {
    Entry *entry = Entry::all();
    while (entry && strcmp(entry->name, name))
        entry = entry->next;
    if (!entry || threads > MOST_FIBRES)
        return 1;
    blocks_all = blocks;
    threads_all = threads;
    for (block_at = 0; block_at < blocks; block_at++) {
        if (entry->barriers) {
            run_block(entry->kernel, words);
            continue;
        }
        for (thread_at = 0; thread_at < threads; thread_at++)
            entry->kernel(*words);
    }
    return 0;
}

#define VOLLEY_EMULATED
#define VOLLEY_KERNEL(name, barriers)                                                                                  \
    static void kernel_##name(const Words w);                                                                          \
    static Entry entry_##name(#name, kernel_##name, barriers);                                                         \
    static void kernel_##name(const Words w)
#define KERNEL(name) VOLLEY_KERNEL(name, false)
#define BLOCK_KERNEL(name) VOLLEY_KERNEL(name, true)
#define BARRIER barrier()
#define SHARED static thread_local
#define DEVICE static inline
#define ADD(at, x) (*(at) += (x))
#define BLOCK block_at
#define BLOCKS blocks_all
#define THREAD thread_at
#define THREADS threads_all
