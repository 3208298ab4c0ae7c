// Kernels of a compiled plan: everything that a training step computes on a device, except matrix products.
//
// NVRTC compiles this text for GPUs. In tests, a C++ compiler compiles it for the CPU, with `VOLLEY_EMULATED` defined and
// a preamble in place of CUDA; blocks run one after another. So there are no warp intrinsics, and a kernel with a BARRIER
// is declared by BLOCK_KERNEL. Kernels know nothing of models: `network::plan` decides which kernel runs on which data.
//
// Legend: B rows of a step, M lanes (ensemble members, or one), C categorical features, N numbers, K outputs, L labels.
// A tensor [M x B x W] has a row stride `ld` >= W and a lane stride, which is 0 if all lanes share it.
// A kernel's argument is an array of 64-bit words: addresses, integers, and floats as bits. `4 x (3)`: x is 3 words from 4.

typedef unsigned long long u64;
typedef unsigned int u32;

#ifndef VOLLEY_EMULATED
#define KERNEL(name) extern "C" __global__ void name(const Words w)
#define BLOCK_KERNEL(name) extern "C" __global__ void name(const Words w)
#define BARRIER __syncthreads()
#define SHARED __shared__
#define DEVICE static __device__ __forceinline__
#define ADD(at, x) atomicAdd(at, x)
#define BLOCK ((int)blockIdx.x)
#define BLOCKS ((int)gridDim.x)
#define THREAD ((int)threadIdx.x)
#define THREADS ((int)blockDim.x)
struct Words {
    u64 at[32];
};
#endif

// Maximum number of threads of a block that sums in shared memory.
#define MOST_THREADS 256

template <class T> DEVICE T *address(const Words &w, int at) { return (T *)w.at[at]; }
DEVICE int integer(const Words &w, int at) { return (int)w.at[at]; }
DEVICE u32 natural(const Words &w, int at) { return (u32)w.at[at]; }
DEVICE float real(const Words &w, int at) {
    union {
        u32 bits;
        float number;
    } x;
    x.bits = (u32)w.at[at];
    return x.number;
}
DEVICE double precise(const Words &w, int at) {
    union {
        u64 bits;
        double number;
    } x;
    x.bits = w.at[at];
    return x.number;
}

DEVICE bool is_finite(double x) { return x - x == 0.0; }

// A tensor, three words: address, row stride, lane stride.
struct Tensor {
    float *data;
    int ld;
    long long lane;
};
DEVICE Tensor tensor(const Words &w, int at) {
    Tensor t;
    t.data = (float *)w.at[at];
    t.ld = (int)w.at[at + 1];
    t.lane = (long long)w.at[at + 2];
    return t;
}
DEVICE float *row_of(const Tensor &t, int lane, int row) { return t.data + lane * t.lane + (long long)row * t.ld; }

// The row of a thread. 2^shift threads of a block share a row, and each takes every 2^shift-th column.
struct Place {
    bool live;
    int lane, row, column, step;
};
DEVICE Place place(int rows, int lanes, int shift) {
    int at = BLOCK * (THREADS >> shift) + (THREAD >> shift);
    Place p;
    p.live = at < rows * lanes;
    p.lane = at / rows;
    p.row = at - p.lane * rows;
    p.step = 1 << shift;
    p.column = THREAD & (p.step - 1);
    return p;
}

// A kernel over rows. Its first words: rows, lanes, shift, width.
#define ROWS integer(w, 0)
#define LANES integer(w, 1)
#define WIDTH integer(w, 3)
#define EACH_ROW                                                                                                       \
    Place p = place(ROWS, LANES, integer(w, 2));                                                                       \
    if (!p.live)                                                                                                       \
        return;                                                                                                        \
    const int width = WIDTH;                                                                                           \
    (void)width;
#define EACH_COLUMN for (int c = p.column; c < width; c += p.step)

// The column and the chunk of rows that a thread of a kernel over columns sums. First words: rows, lanes, chunk, width.
struct Column {
    bool live;
    int lane, column, first, last;
};
DEVICE Column column(int rows, int lanes, int chunk, int width) {
    long long at = (long long)BLOCK * THREADS + THREAD;
    int chunks = (rows + chunk - 1) / chunk;
    Column c;
    c.live = at < (long long)chunks * lanes * width;
    c.column = (int)(at % width);
    at /= width;
    c.lane = (int)(at % lanes);
    c.first = (int)(at / lanes) * chunk;
    c.last = c.first + chunk < rows ? c.first + chunk : rows;
    return c;
}
#define EACH_SUM                                                                                                       \
    Column s = column(ROWS, LANES, integer(w, 2), WIDTH);                                                              \
    if (!s.live)                                                                                                       \
        return;
#define EACH_SUMMED for (int r = s.first; r < s.last; r++)

// Sums one number per thread of a block into `sums[0]`. All threads must call it.
template <class T> DEVICE void block_sum(T *sums, T x) {
    sums[THREAD] = x;
    BARRIER;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (THREAD < half)
            sums[THREAD] += sums[THREAD + half];
        BARRIER;
    }
}

// SplitMix64, as in `volley_proto::splitmix`.
#define INCREMENT 0x9e3779b97f4a7c15ULL
DEVICE u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}
DEVICE u64 part(u64 key, u64 name) { return mix((key + INCREMENT) ^ mix(name * INCREMENT)); }

// Dropout of a tensor, six words: keys, key block of the first lane, blocks between lanes, keys per block, bound below
// which a unit is dropped, scale of kept units. Without keys, there is no dropout.
struct Mask {
    const u64 *keys;
    u32 below;
    float scale;
};
DEVICE Mask mask(const Words &w, int at, int lane, int row) {
    Mask m;
    const u64 *keys = address<const u64>(w, at);
    long long first = (long long)(integer(w, at + 1) + lane * integer(w, at + 2)) * integer(w, at + 3);
    m.keys = keys ? keys + first + row : 0;
    m.below = natural(w, at + 4);
    m.scale = real(w, at + 5);
    return m;
}
DEVICE float masked(const Mask &m, float x, int unit) {
    if (!m.keys)
        return x;
    u64 bits = mix(*m.keys + ((u64)(unit >> 1) + 1) * INCREMENT);
    u32 own = unit & 1 ? (u32)(bits >> 32) : (u32)bits;
    return own < m.below ? 0.0f : x * m.scale;
}

// Writes a gradient, or adds it to those of other uses of the value.
DEVICE void give(float *to, float x, bool add) { *to = add ? *to + x : x; }

// ---------------------------------------------------------------------------------------------------------------------
// Rows of a step

// Copies the rows of step clock[0] from the shard, and sums what batch norm and the epoch's totals need. Places beyond
// the step's rows get the row `spare` and the weight -1. With slots, `order` has the place of each step's first row, which
// the others follow.
// partials: [blocks x (2N + 2)]: sums of x - shift and its square, rows, weight. checks: [blocks]: wrapping sums of keys.
BLOCK_KERNEL(gather) {
    const int *clock = address<const int>(w, 0);
    const u32 *order = address<const u32>(w, 1);
    const u32 *starts = address<const u32>(w, 2);
    const u32 *codes = address<const u32>(w, 3);
    const int C = integer(w, 4);
    const float *numbers = address<const float>(w, 5);
    const int N = integer(w, 6);
    const float *labels = address<const float>(w, 7);
    const int L = integer(w, 8);
    const float *weights = address<const float>(w, 9);
    const u64 *keys = address<const u64>(w, 10);
    const u32 *folds = address<const u32>(w, 11);
    const u32 *shards = address<const u32>(w, 12);
    const u32 *places = address<const u32>(w, 13);
    const u64 *dropouts = address<const u64>(w, 14);
    const int P = integer(w, 15);
    u32 *to_codes = address<u32>(w, 16);
    float *to_numbers = address<float>(w, 17);
    const int ld = integer(w, 18);
    float *to_labels = address<float>(w, 19);
    float *to_weights = address<float>(w, 20);
    u32 *to_folds = address<u32>(w, 21);
    u64 *to_keys = address<u64>(w, 22);
    const int B = integer(w, 23);
    double *partials = address<double>(w, 24);
    u64 *checks = address<u64>(w, 25);
    const double *shift = address<const double>(w, 26);
    const int moments = integer(w, 27), slots = integer(w, 28);
    const u32 spare = natural(w, 29);

    const int step = clock[0];
    const u32 start = starts[step];
    const int rows = (int)(starts[step + 1] - start);
    const int each = (B + BLOCKS - 1) / BLOCKS;
    const int first = BLOCK * each;
    const int last = first + each < B ? first + each : B;
#define SOURCE(r) ((r) >= rows ? spare : slots ? order[step] + (u32)(r) : order[start + (r)])
    for (int at = THREAD; at < (last - first) * C; at += THREADS) {
        int r = first + at / C, c = at % C;
        to_codes[(long long)r * C + c] = codes[(long long)SOURCE(r) * C + c];
    }
    for (int at = THREAD; at < (last - first) * N; at += THREADS) {
        int r = first + at / N, c = at % N;
        to_numbers[(long long)r * ld + c] = numbers[(long long)SOURCE(r) * N + c];
    }
    for (int at = THREAD; at < (last - first) * L; at += THREADS) {
        int r = first + at / L, c = at % L;
        to_labels[(long long)r * L + c] = labels[(long long)SOURCE(r) * L + c];
    }
    SHARED double sums[2][MOST_THREADS];
    SHARED u64 check[MOST_THREADS];
    double count = 0.0, weight = 0.0;
    u64 sum = 0;
    for (int r = first + THREAD; r < last; r += THREADS) {
        u32 from = SOURCE(r);
        float own = weights ? weights[from] : 1.0f;
        to_weights[r] = r < rows ? own : -1.0f;
        if (folds)
            to_folds[r] = folds[from];
        for (int p = 0; p < P; p++)
            to_keys[(long long)p * B + r] = part(part(dropouts[p], shards[from]), places[from]);
        if (r < rows) {
            count += 1.0;
            weight += own;
            sum += keys[from];
        }
    }
    block_sum(sums[0], count);
    block_sum(sums[1], weight);
    block_sum(check, sum);
    const int stride = 2 * N + 2;
    if (THREAD == 0) {
        partials[BLOCK * stride + 2 * N] = sums[0][0];
        partials[BLOCK * stride + 2 * N + 1] = sums[1][0];
        checks[BLOCK] = check[0];
    }
    BARRIER;
    if (!moments)
        return;
    // THREADS / N threads per column; if columns outnumber threads, THREADS columns at a time.
    const int groups = THREADS / N > 0 ? THREADS / N : 1;
    const int end = last < rows ? last : rows;
    for (int base = 0; base < N; base += THREADS) {
        const int columns = N - base < THREADS ? N - base : THREADS;
        const int c = base + THREAD % columns, group = THREAD / columns;
        double s = 0.0, q = 0.0;
        if (group < groups)
            for (int r = first + group; r < end; r += groups) {
                double distance = (double)numbers[(long long)SOURCE(r) * N + c] - shift[c];
                s += distance;
                q += distance * distance;
            }
        sums[0][THREAD] = s;
        sums[1][THREAD] = q;
        BARRIER;
        if (group == 0) {
            for (int g = 1; g < groups; g++) {
                s += sums[0][THREAD + g * columns];
                q += sums[1][THREAD + g * columns];
            }
            partials[BLOCK * stride + c] = s;
            partials[BLOCK * stride + N + c] = q;
        }
        BARRIER;
    }
#undef SOURCE
}

// Pieces of a checksum that an all-reduce sums as numbers: 22 bits each, so that their sums are exact.
#define PIECES 3
#define PIECE_BITS 22

// Adds up partial sums for an all-reduce, a block for each of `width` columns. With `checks`, five numbers follow: the
// checksum in pieces and, not to be summed, the rows of this device (the last column but one) and its checksum as bits.
// 0 partials [count x width], 1 count, 2 width, 3 sums, 4 checks [count] or none.
BLOCK_KERNEL(fold) {
    SHARED double sums[MOST_THREADS];
    SHARED u64 check[MOST_THREADS];
    const double *partials = address<const double>(w, 0);
    const int count = integer(w, 1), width = integer(w, 2);
    double *to = address<double>(w, 3);
    const u64 *checks = address<const u64>(w, 4);
    double s = 0.0;
    for (int b = THREAD; b < count; b += THREADS)
        s += partials[(long long)b * width + BLOCK];
    block_sum(sums, s);
    if (THREAD == 0)
        to[BLOCK] = sums[0];
    if (!checks || BLOCK != width - 2)
        return;
    u64 sum = 0;
    for (int b = THREAD; b < count; b += THREADS)
        sum += checks[b];
    block_sum(check, sum);
    if (THREAD == 0) {
        for (int p = 0; p < PIECES; p++)
            to[width + p] = (double)((check[0] >> (p * PIECE_BITS)) & ((1u << PIECE_BITS) - 1));
        to[width + PIECES] = sums[0];
        ((u64 *)to)[width + PIECES + 1] = check[0];
    }
}

// Adds up the partial sums of a step and advances the clock: clock[1] is now this step, clock[0] the next one. With
// `folded`, what `fold` has put behind the sums, these are over all devices. statistics: [2N + 5]: means, variances, rows,
// weight and, as bits, the checksum; then this device's rows and, as bits, its checksum.
KERNEL(settle) {
    int *clock = address<int>(w, 0);
    const double *partials = address<const double>(w, 1);
    const u64 *checks = address<const u64>(w, 2);
    const int count = integer(w, 3), N = integer(w, 4);
    const double *shift = address<const double>(w, 5);
    double *statistics = address<double>(w, 6);
    const int moments = integer(w, 7);
    const double *folded = address<const double>(w, 8);
    const int stride = 2 * N + 2;
    const int at = BLOCK * THREADS + THREAD;
    double rows = 0.0;
    for (int b = 0; b < count; b++)
        rows += partials[b * stride + 2 * N];
    if (at == 0) {
        double weight = 0.0;
        u64 check = 0;
        for (int b = 0; b < count; b++) {
            weight += partials[b * stride + 2 * N + 1];
            if (!folded)
                check += checks[b];
        }
        for (int p = 0; folded && p < PIECES; p++)
            check += (u64)folded[p] << (p * PIECE_BITS);
        statistics[2 * N] = rows;
        statistics[2 * N + 1] = weight;
        ((u64 *)statistics)[2 * N + 2] = check;
        statistics[2 * N + 3] = folded ? folded[PIECES] : rows;
        ((u64 *)statistics)[2 * N + 4] = folded ? ((const u64 *)folded)[PIECES + 1] : check;
        clock[1] = clock[0];
        clock[0] = clock[0] + 1;
    }
    if (at >= N || !moments)
        return;
    double s = 0.0, q = 0.0;
    for (int b = 0; b < count; b++) {
        s += partials[b * stride + at];
        q += partials[b * stride + N + at];
    }
    double variance = q / rows - (s / rows) * (s / rows);
    statistics[at] = shift[at] + s / rows;
    statistics[N + at] = variance > 0.0 ? variance : 0.0;
}

// An embedding table, six words. By feature: first code, start of its rows, their width. By picked column: feature, column
// of the feature's row. Then the number of picked columns. The lanes' rows of a code are side by side.
struct Table {
    const u32 *first, *start, *width, *feature, *at;
    int lanes, columns;
};
DEVICE Table table(const Words &w, int at, int lanes) {
    Table t;
    t.first = address<const u32>(w, at);
    t.start = address<const u32>(w, at + 1);
    t.width = address<const u32>(w, at + 2);
    t.feature = address<const u32>(w, at + 3);
    t.at = address<const u32>(w, at + 4);
    t.columns = integer(w, at + 5);
    t.lanes = lanes;
    return t;
}
DEVICE long long entry(const Table &t, const u32 *codes, int lane, int column) {
    u32 feature = t.feature[column];
    u32 width = t.width[feature];
    long long row = (long long)(codes[feature] - t.first[feature]) * width * t.lanes;
    return t.start[feature] + row + lane * (long long)width + t.at[column];
}

// Looks up embeddings, normalises numbers and applies batch norm's scale and shift.
KERNEL(enter) {
    EACH_ROW
    // words: 4 table (6), 10 lanes of the table, 11 codes, 12 C, 13 weights of the table, 14 embeddings (3), 17 numbers
    // (3), 20 N, 21 statistics or none, 22 gamma or none, 23 beta, 24 stride of gamma, 25 scaled numbers (3)
    const int lanes = integer(w, 10);
    const Table t = table(w, 4, lanes);
    const u32 *codes = address<const u32>(w, 11) + (long long)p.row * integer(w, 12);
    const float *weights = address<const float>(w, 13);
    const Tensor picked = tensor(w, 14), numbers = tensor(w, 17), scaled = tensor(w, 25);
    const int N = integer(w, 20);
    const double *statistics = address<const double>(w, 21);
    const float *gamma = address<const float>(w, 22), *beta = address<const float>(w, 23);
    const int all = t.columns * lanes;
    EACH_COLUMN {
        if (c < all) {
            int lane = c / t.columns, own = c - lane * t.columns;
            row_of(picked, lane, p.row)[own] = weights[entry(t, codes, lane, own)];
            continue;
        }
        int n = c - all;
        float *x = row_of(numbers, 0, p.row) + n;
        if (statistics)
            *x = (float)(((double)*x - statistics[n]) * (1.0 / sqrt(statistics[N + n] + 1e-3)));
        if (gamma)
            for (int lane = 0; lane < lanes; lane++) {
                long long at = lane * (long long)integer(w, 24) + n;
                row_of(scaled, lane, p.row)[n] = *x * gamma[at] + beta[at];
            }
    }
}

// Gradients of a table's rows and of batch norm's scale and shift, from the gradients of `enter`'s outputs.
KERNEL(entered) {
    // words: 0 rows, 1 lanes, 2 chunk, 3 N, 4 table (6), 10 codes, 11 C, 12 gradient of the table, 13 delta of the
    // embeddings (3), 16 numbers (3), 19 delta of scaled numbers (3), 22 gradient of gamma or none, 23 of beta, 24 stride
    const int rows = ROWS, lanes = LANES, chunk = integer(w, 2), N = WIDTH;
    const Table t = table(w, 4, lanes);
    long long at = (long long)BLOCK * THREADS + THREAD;
    const long long picks = (long long)rows * lanes * t.columns;
    if (at < picks) {
        int row = (int)(at / (lanes * t.columns)), rest = (int)(at % (lanes * t.columns));
        int lane = rest / t.columns, own = rest - lane * t.columns;
        const u32 *codes = address<const u32>(w, 10) + (long long)row * integer(w, 11);
        ADD(address<float>(w, 12) + entry(t, codes, lane, own), row_of(tensor(w, 13), lane, row)[own]);
        return;
    }
    at -= picks;
    float *gamma = address<float>(w, 22), *beta = address<float>(w, 23);
    int chunks = (rows + chunk - 1) / chunk;
    if (!gamma || at >= (long long)chunks * lanes * N)
        return;
    int n = (int)(at % N);
    at /= N;
    int lane = (int)(at % lanes), first = (int)(at / lanes) * chunk;
    const Tensor x = tensor(w, 16), dy = tensor(w, 19);
    double scale = 0.0, shift = 0.0;
    for (int r = first; r < first + chunk && r < rows; r++) {
        float d = row_of(dy, lane, r)[n];
        scale += (double)d * row_of(x, 0, r)[n];
        shift += d;
    }
    long long to = lane * (long long)integer(w, 24) + n;
    ADD(gamma + to, (float)scale);
    ADD(beta + to, (float)shift);
}

// ---------------------------------------------------------------------------------------------------------------------
// Layers. Words from 4 on: inputs, outputs, flags.

// ReLU and dropout after a dense layer's product, in place. 4 y (3), 7 mask (6), 13 ReLU flag.
KERNEL(dense) {
    EACH_ROW
    float *y = row_of(tensor(w, 4), p.lane, p.row);
    const Mask m = mask(w, 7, p.lane, p.row);
    const bool relu = integer(w, 13);
    EACH_COLUMN {
        float x = relu && !(y[c] > 0.0f) ? (y[c] == y[c] ? 0.0f : y[c]) : y[c];
        y[c] = masked(m, x, c);
    }
}

// Its gradient, in place: zero where ReLU or dropout gave zero. 4 y (3), 7 dy (3), 10 scale of kept units.
KERNEL(dense_back) {
    EACH_ROW
    const float *y = row_of(tensor(w, 4), p.lane, p.row);
    float *dy = row_of(tensor(w, 7), p.lane, p.row);
    const float scale = real(w, 10);
    EACH_COLUMN dy[c] = y[c] > 0.0f ? dy[c] * scale : 0.0f;
}

// Applies dropout to a value or its gradient. 4 x (3), 7 y (3), 10 mask (6), 16 add flag.
KERNEL(drop) {
    EACH_ROW
    const float *x = row_of(tensor(w, 4), p.lane, p.row);
    float *y = row_of(tensor(w, 7), p.lane, p.row);
    const Mask m = mask(w, 10, p.lane, p.row);
    const bool add = integer(w, 16);
    EACH_COLUMN give(y + c, masked(m, x[c], c), add);
}

// In the order of `Activation::ALL`.
enum { RELU, RELU6, LEAKY_RELU, ELU, SELU, GELU, SILU, MISH, TANH, SIGMOID };
DEVICE float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }
DEVICE float gelu_argument(float x) { return 0.7978846f * (x + 0.044715f * x * x * x); }
DEVICE float tanh_of_softplus(float x) {
    float v = expf(x < 20.0f ? x : 20.0f);
    float n = v * (v + 2.0f);
    return n / (n + 2.0f);
}
DEVICE float activated(int kind, float x) {
    switch (kind) {
    case RELU: return x > 0.0f ? x : 0.0f;
    case RELU6: return x > 0.0f ? (x < 6.0f ? x : 6.0f) : 0.0f;
    case LEAKY_RELU: return x > 0.0f ? x : 0.01f * x;
    case ELU: return x < 0.0f ? expm1f(x) : x;
    case SELU: return x < 0.0f ? 1.7580993f * expm1f(x) : 1.050701f * x;
    case GELU: return 0.5f * x * (1.0f + tanhf(gelu_argument(x)));
    case SILU: return x * sigmoid_of(x);
    case MISH: return x * tanh_of_softplus(x);
    case TANH: return tanhf(x);
    default: return sigmoid_of(x);
    }
}
DEVICE float slope_of(int kind, float x) {
    switch (kind) {
    case RELU: return x > 0.0f ? 1.0f : 0.0f;
    case RELU6: return x > 0.0f && x <= 6.0f ? 1.0f : 0.0f;
    case LEAKY_RELU: return x > 0.0f ? 1.0f : 0.01f;
    case ELU: return x < 0.0f ? expf(x) : 1.0f;
    case SELU: return x < 0.0f ? 1.7580993f * expf(x) : 1.050701f;
    case GELU: {
        float t = tanhf(gelu_argument(x));
        float inner = 0.7978846f * (1.0f + 3.0f * 0.044715f * x * x);
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
    }
    case SILU: {
        float y = sigmoid_of(x);
        return y * (1.0f + x * (1.0f - y));
    }
    case MISH: {
        float t = tanh_of_softplus(x);
        return t + x * (1.0f - t * t) * sigmoid_of(x);
    }
    case TANH: {
        float t = tanhf(x);
        return 1.0f - t * t;
    }
    default: {
        float y = sigmoid_of(x);
        return y * (1.0f - y);
    }
    }
}

// 4 x (3), 7 y (3), 10 kind.
KERNEL(activate) {
    EACH_ROW
    const float *x = row_of(tensor(w, 4), p.lane, p.row);
    float *y = row_of(tensor(w, 7), p.lane, p.row);
    const int kind = integer(w, 10);
    EACH_COLUMN y[c] = activated(kind, x[c]);
}

// 4 x (3), 7 dy (3), 10 dx (3), 13 kind, 14 add flag.
KERNEL(activate_back) {
    EACH_ROW
    const float *x = row_of(tensor(w, 4), p.lane, p.row);
    const float *dy = row_of(tensor(w, 7), p.lane, p.row);
    float *dx = row_of(tensor(w, 10), p.lane, p.row);
    const int kind = integer(w, 13);
    const bool add = integer(w, 14);
    EACH_COLUMN give(dx + c, dy[c] * slope_of(kind, x[c]), add);
}

// Gradient by the numbers that batch norm scales. 4 dy (3), 7 dx (3), 10 gamma, 11 its stride, 12 add flag.
KERNEL(scale_back) {
    EACH_ROW
    const float *dy = row_of(tensor(w, 4), p.lane, p.row);
    float *dx = row_of(tensor(w, 7), p.lane, p.row);
    const float *gamma = address<const float>(w, 10) + p.lane * (long long)integer(w, 11);
    const bool add = integer(w, 12);
    EACH_COLUMN give(dx + c, dy[c] * gamma[c], add);
}

// Writes 1 into the column that biases are multiplied by. 4 x (3), 7 column. The width is 1.
KERNEL(ones) {
    EACH_ROW
    EACH_COLUMN row_of(tensor(w, 4), p.lane, p.row)[integer(w, 7)] = 1.0f;
}

// 4 x (3), 7 y (3), 10 add flag.
KERNEL(copy) {
    EACH_ROW
    const float *x = row_of(tensor(w, 4), p.lane, p.row);
    float *y = row_of(tensor(w, 7), p.lane, p.row);
    const bool add = integer(w, 10);
    EACH_COLUMN give(y + c, x[c], add);
}

// Sums the lanes' gradients of a shared value. 4 dy (3), 7 dx (3), 10 add flag, 11 lanes. The rows are of one lane.
KERNEL(gather_lanes) {
    EACH_ROW
    const Tensor dy = tensor(w, 4);
    float *dx = row_of(tensor(w, 7), 0, p.row);
    const bool add = integer(w, 10);
    const int lanes = integer(w, 11);
    EACH_COLUMN {
        float sum = 0.0f;
        for (int lane = 0; lane < lanes; lane++)
            sum += row_of(dy, lane, p.row)[c];
        give(dx + c, sum, add);
    }
}

// 4 a (3), 7 b (3), 10 y (3).
KERNEL(sum) {
    EACH_ROW
    const float *a = row_of(tensor(w, 4), p.lane, p.row), *b = row_of(tensor(w, 7), p.lane, p.row);
    float *y = row_of(tensor(w, 10), p.lane, p.row);
    EACH_COLUMN y[c] = a[c] + b[c];
}

// 4 a (3), 7 b (3), 10 y (3), 13 add flag.
KERNEL(multiply) {
    EACH_ROW
    const float *a = row_of(tensor(w, 4), p.lane, p.row), *b = row_of(tensor(w, 7), p.lane, p.row);
    float *y = row_of(tensor(w, 10), p.lane, p.row);
    const bool add = integer(w, 13);
    EACH_COLUMN give(y + c, a[c] * b[c], add);
}

// Layer norm, one block per row. 4 x (3), 7 y (3), 10 gamma, 11 beta, 12 stride of both, 13 moments [M·B x 2].
BLOCK_KERNEL(layer_norm) {
    SHARED double sums[MOST_THREADS];
    const int lane = BLOCK / ROWS, row = BLOCK % ROWS, width = WIDTH;
    const float *x = row_of(tensor(w, 4), lane, row);
    float *y = row_of(tensor(w, 7), lane, row);
    const float *gamma = address<const float>(w, 10) + lane * (long long)integer(w, 12);
    const float *beta = address<const float>(w, 11) + lane * (long long)integer(w, 12);
    double sum = 0.0;
    for (int c = THREAD; c < width; c += THREADS)
        sum += x[c];
    block_sum(sums, sum);
    const double mean = sums[0] / width;
    BARRIER;
    sum = 0.0;
    for (int c = THREAD; c < width; c += THREADS)
        sum += ((double)x[c] - mean) * ((double)x[c] - mean);
    block_sum(sums, sum);
    const float center = (float)mean, scale = (float)(1.0 / sqrt(sums[0] / width + 1e-5));
    if (THREAD == 0) {
        address<float>(w, 13)[2 * BLOCK] = center;
        address<float>(w, 13)[2 * BLOCK + 1] = scale;
    }
    for (int c = THREAD; c < width; c += THREADS)
        y[c] = (x[c] - center) * scale * gamma[c] + beta[c];
}

// 4 x (3), 7 dy (3), 10 dx (3), 13 gamma, 14 its stride, 15 moments, 16 add flag.
BLOCK_KERNEL(layer_norm_back) {
    SHARED double sums[MOST_THREADS];
    const int lane = BLOCK / ROWS, row = BLOCK % ROWS, width = WIDTH;
    const float *x = row_of(tensor(w, 4), lane, row), *dy = row_of(tensor(w, 7), lane, row);
    float *dx = row_of(tensor(w, 10), lane, row);
    const float *gamma = address<const float>(w, 13) + lane * (long long)integer(w, 14);
    const float mean = address<const float>(w, 15)[2 * BLOCK], scale = address<const float>(w, 15)[2 * BLOCK + 1];
    const bool add = integer(w, 16);
    double sum = 0.0, along = 0.0;
    for (int c = THREAD; c < width; c += THREADS) {
        float d = dy[c] * gamma[c];
        sum += d;
        along += d * (x[c] - mean) * scale;
    }
    block_sum(sums, sum);
    const float all = (float)(sums[0] / width);
    BARRIER;
    block_sum(sums, along);
    const float slanted = (float)(sums[0] / width);
    for (int c = THREAD; c < width; c += THREADS)
        give(dx + c, scale * (dy[c] * gamma[c] - all - (x[c] - mean) * scale * slanted), add);
}

// Gradients of gamma and beta. 4 x (3), 7 dy (3), 10 moments, 11 gradient of gamma, 12 of beta, 13 their stride.
KERNEL(layer_norm_sums) {
    EACH_SUM
    const Tensor x = tensor(w, 4), dy = tensor(w, 7);
    const float *moments = address<const float>(w, 10) + 2LL * s.lane * ROWS;
    double along = 0.0, sum = 0.0;
    EACH_SUMMED {
        float d = row_of(dy, s.lane, r)[s.column];
        along += d * (row_of(x, s.lane, r)[s.column] - moments[2 * r]) * moments[2 * r + 1];
        sum += d;
    }
    long long to = s.lane * (long long)integer(w, 13) + s.column;
    ADD(address<float>(w, 11) + to, (float)along);
    ADD(address<float>(w, 12) + to, (float)sum);
}

// Periodic embeddings of numbers, with F frequencies and D trained columns each. The width is N.
// 4 x (3), 7 y (3), 10 c, 11 phi, 12 W, 13 b, 14 their stride, 15 F, 16 D. Rows of y are [N x (1 + D)].
#define TAU 6.2831853071795865f
KERNEL(periodic) {
    EACH_ROW
    const float *x = row_of(tensor(w, 4), p.lane, p.row);
    float *y = row_of(tensor(w, 7), p.lane, p.row);
    const long long stride = p.lane * (long long)integer(w, 14);
    const int F = integer(w, 15), D = integer(w, 16);
    EACH_COLUMN {
        const float *frequency = address<const float>(w, 10) + stride + c * F;
        const float *phase = address<const float>(w, 11) + stride + c * F;
        const float *kernel = address<const float>(w, 12) + stride + c * F * D;
        const float *bias = address<const float>(w, 13) + stride + c * D;
        float *to = y + c * (1 + D);
        to[0] = x[c];
        for (int d = 0; d < D; d++)
            to[1 + d] = bias[d];
        for (int f = 0; f < F; f++) {
            float cosine = cosf(TAU * frequency[f] * x[c] + phase[f]);
            for (int d = 0; d < D; d++)
                to[1 + d] += cosine * kernel[f * D + d];
        }
    }
}

// 4 x (3), 7 dy (3), 10 dx (3), 13 c, 14 phi, 15 W, 16 their stride, 17 F, 18 D, 19 add flag.
KERNEL(periodic_back) {
    EACH_ROW
    const float *x = row_of(tensor(w, 4), p.lane, p.row), *dy = row_of(tensor(w, 7), p.lane, p.row);
    float *dx = row_of(tensor(w, 10), p.lane, p.row);
    const long long stride = p.lane * (long long)integer(w, 16);
    const int F = integer(w, 17), D = integer(w, 18);
    const bool add = integer(w, 19);
    EACH_COLUMN {
        const float *frequency = address<const float>(w, 13) + stride + c * F;
        const float *phase = address<const float>(w, 14) + stride + c * F;
        const float *kernel = address<const float>(w, 15) + stride + c * F * D;
        const float *from = dy + c * (1 + D);
        float sum = from[0];
        for (int f = 0; f < F; f++) {
            float by_angle = 0.0f;
            for (int d = 0; d < D; d++)
                by_angle += kernel[f * D + d] * from[1 + d];
            sum += -sinf(TAU * frequency[f] * x[c] + phase[f]) * by_angle * TAU * frequency[f];
        }
        give(dx + c, sum, add);
    }
}

// Gradients of its weights, one thread per wave of a number. 4 x (3), 7 dy (3), 10 c, 11 phi, 12 W, 13 stride,
// 14 F, 15 D, 16 gradient of c, 17 of phi, 18 of W, 19 of b. The width is N·F; D is at most 16.
KERNEL(periodic_sums) {
    EACH_SUM
    const Tensor x = tensor(w, 4), dy = tensor(w, 7);
    const long long stride = s.lane * (long long)integer(w, 13);
    const int F = integer(w, 14), D = integer(w, 15);
    const int number = s.column / F, wave = s.column % F;
    const float frequency = address<const float>(w, 10)[stride + s.column];
    const float phase = address<const float>(w, 11)[stride + s.column];
    const float *kernel = address<const float>(w, 12) + stride + s.column * D;
    double of_frequency = 0.0, of_phase = 0.0;
    float of_kernel[16], of_bias[16];
    for (int d = 0; d < D; d++)
        of_kernel[d] = of_bias[d] = 0.0f;
    EACH_SUMMED {
        const float number_x = row_of(x, s.lane, r)[number];
        const float *from = row_of(dy, s.lane, r) + number * (1 + D) + 1;
        const float angle = TAU * frequency * number_x + phase;
        const float cosine = cosf(angle);
        float by_angle = 0.0f;
        for (int d = 0; d < D; d++) {
            by_angle += kernel[d] * from[d];
            of_kernel[d] += cosine * from[d];
            of_bias[d] += from[d];
        }
        by_angle *= -sinf(angle);
        of_frequency += by_angle * TAU * number_x;
        of_phase += by_angle;
    }
    ADD(address<float>(w, 16) + stride + s.column, (float)of_frequency);
    ADD(address<float>(w, 17) + stride + s.column, (float)of_phase);
    for (int d = 0; d < D; d++) {
        ADD(address<float>(w, 18) + stride + s.column * D + d, of_kernel[d]);
        if (wave == 0)
            ADD(address<float>(w, 19) + stride + number * D + d, of_bias[d]);
    }
}

// Piecewise linear embeddings of numbers. edges: [N x (T + 1)]; number n has `bins[n]` bins.
DEVICE int bin_of(const float *edges, int bins, float x, float *share) {
    int at = 0;
    while (at + 1 < bins && edges[at + 1] <= x)
        at++;
    float of = (x - edges[at]) / (edges[at + 1] - edges[at]);
    *share = of > 0.0f ? (of < 1.0f ? of : 1.0f) : (of == of ? 0.0f : of);
    return at;
}
// 4 x (3), 7 y (3), 10 edges, 11 bins, 12 T, 13 D, 14 w, 15 b, 16 W, 17 their stride. The width is N·D.
KERNEL(piecewise) {
    EACH_ROW
    const float *x = row_of(tensor(w, 4), p.lane, p.row);
    float *y = row_of(tensor(w, 7), p.lane, p.row);
    const int T = integer(w, 12), D = integer(w, 13);
    const long long stride = p.lane * (long long)integer(w, 17);
    const float *weight = address<const float>(w, 14) + stride, *bias = address<const float>(w, 15) + stride;
    const float *kernel = address<const float>(w, 16) + stride;
    EACH_COLUMN {
        const int number = c / D, d = c % D;
        float share;
        const int at = bin_of(address<const float>(w, 10) + number * (T + 1), address<const int>(w, 11)[number], x[number], &share);
        float to = x[number] * weight[c] + bias[c];
        for (int t = 0; t < at; t++)
            to += kernel[(number * T + t) * D + d];
        y[c] = to + share * kernel[(number * T + at) * D + d];
    }
}
// 4 x (3), 7 dy (3), 10 edges, 11 bins, 12 T (at most 48), 13 D, 14 gradient of w, 15 of b, 16 of W, 17 their stride.
KERNEL(piecewise_sums) {
    EACH_SUM
    const Tensor x = tensor(w, 4), dy = tensor(w, 7);
    const int T = integer(w, 12), D = integer(w, 13);
    const long long stride = s.lane * (long long)integer(w, 17);
    const int number = s.column / D, d = s.column % D;
    float whole[49], partly[49];
    for (int t = 0; t <= T; t++)
        whole[t] = partly[t] = 0.0f;
    double slant = 0.0, sum = 0.0;
    EACH_SUMMED {
        const float at_x = row_of(x, s.lane, r)[number], delta = row_of(dy, s.lane, r)[s.column];
        float share;
        const int at = bin_of(address<const float>(w, 10) + number * (T + 1), address<const int>(w, 11)[number], at_x, &share);
        whole[at] += delta;
        partly[at] += share * delta;
        slant += (double)at_x * delta;
        sum += delta;
    }
    ADD(address<float>(w, 14) + stride + s.column, (float)slant);
    ADD(address<float>(w, 15) + stride + s.column, (float)sum);
    // A row fills all bins below its own.
    float above = 0.0f;
    for (int t = T - 1; t >= 0; t--) {
        float of = partly[t] + above;
        if (of != 0.0f)
            ADD(address<float>(w, 16) + stride + (number * T + t) * D + d, of);
        above += whole[t];
    }
}

// Looks up rows of a table without lanes. 4 table (6), 10 codes, 11 C, 12 weights, 13 output (3).
KERNEL(pick) {
    EACH_ROW
    const Table t = table(w, 4, 1);
    const u32 *codes = address<const u32>(w, 10) + (long long)p.row * integer(w, 11);
    const float *weights = address<const float>(w, 12);
    float *to = row_of(tensor(w, 13), 0, p.row);
    EACH_COLUMN to[c] = weights[entry(t, codes, 0, c)];
}
// Gradient of the table. 4 table (6), 10 codes, 11 C, 12 gradient, 13 delta (3).
KERNEL(pick_sums) {
    EACH_ROW
    const Table t = table(w, 4, 1);
    const u32 *codes = address<const u32>(w, 10) + (long long)p.row * integer(w, 11);
    float *gradient = address<float>(w, 12);
    const float *delta = row_of(tensor(w, 13), 0, p.row);
    EACH_COLUMN ADD(gradient + entry(t, codes, 0, c), delta[c]);
}

// Interactions of factors, F per output. The width is K. 4 factors of codes (3) or none, 7 C, 8 numbers (3) or none,
// 11 N, 12 factors of numbers, 13 F, 14 y (3), 17 sums [B x K·F].
KERNEL(interact) {
    EACH_ROW
    const float *codes = address<const float>(w, 4) ? row_of(tensor(w, 4), 0, p.row) : 0;
    const float *numbers = address<const float>(w, 8) ? row_of(tensor(w, 8), 0, p.row) : 0;
    const float *factors = address<const float>(w, 12);
    const int C = integer(w, 7), N = integer(w, 11), F = integer(w, 13);
    float *y = row_of(tensor(w, 14), 0, p.row);
    EACH_COLUMN {
        float total = 0.0f;
        for (int f = 0; f < F; f++) {
            const int at = c * F + f;
            float s = 0.0f, q = 0.0f;
            for (int i = 0; codes && i < C; i++) {
                float v = codes[i * width * F + at];
                s += v;
                q += v * v;
            }
            for (int i = 0; numbers && i < N; i++) {
                float v = factors[i * width * F + at] * numbers[i];
                s += v;
                q += v * v;
            }
            address<float>(w, 17)[(long long)p.row * width * F + at] = s;
            total += s * s - q;
        }
        y[c] = 0.5f * total;
    }
}
// Gradient of the factors of codes. The width is C·K·F. 4 factors (3), 7 dy (3), 10 output (3), 13 sums, 14 K, 15 F,
// 16 add flag.
KERNEL(interact_back) {
    EACH_ROW
    const float *v = row_of(tensor(w, 4), 0, p.row), *dy = row_of(tensor(w, 7), 0, p.row);
    float *to = row_of(tensor(w, 10), 0, p.row);
    const int F = integer(w, 15), KF = integer(w, 14) * F;
    const float *sums = address<const float>(w, 13) + (long long)p.row * KF;
    const bool add = integer(w, 16);
    EACH_COLUMN give(to + c, dy[(c % KF) / F] * (sums[c % KF] - v[c]), add);
}
// Gradient by numbers. The width is N. 4 numbers (3), 7 dy (3), 10 output (3), 13 factors, 14 sums, 15 K, 16 F, 17 add flag.
KERNEL(interact_numbers) {
    EACH_ROW
    const float *x = row_of(tensor(w, 4), 0, p.row), *dy = row_of(tensor(w, 7), 0, p.row);
    float *to = row_of(tensor(w, 10), 0, p.row);
    const int F = integer(w, 16), KF = integer(w, 15) * F;
    const float *sums = address<const float>(w, 14) + (long long)p.row * KF;
    const bool add = integer(w, 17);
    EACH_COLUMN {
        const float *v = address<const float>(w, 13) + c * KF;
        float sum = 0.0f;
        for (int at = 0; at < KF; at++)
            sum += dy[at / F] * (sums[at] - v[at] * x[c]) * v[at];
        give(to + c, sum, add);
    }
}
// Gradient of factors of numbers; the width is N·K·F. 4 numbers (3), 7 dy (3), 10 factors, 11 sums, 12 K, 13 F, 14 gradient.
KERNEL(interact_sums) {
    EACH_SUM
    const Tensor numbers = tensor(w, 4), dy = tensor(w, 7);
    const float v = address<const float>(w, 10)[s.column];
    const int F = integer(w, 13), KF = integer(w, 12) * F;
    const int number = s.column / KF, own = s.column % KF;
    double sum = 0.0;
    EACH_SUMMED {
        const float x = row_of(numbers, 0, r)[number];
        sum += (double)(row_of(dy, 0, r)[own / F] * (address<const float>(w, 11)[(long long)r * KF + own] - v * x)) * x;
    }
    ADD(address<float>(w, 14) + s.column, (float)sum);
}

// The linear part. The width is K. 4 codes, 5 C, 6 weights of values or none, 7 numbers (3), 10 N, 11 weights of numbers
// or none, 12 bias or none, 13 y (3).
KERNEL(linear) {
    EACH_ROW
    const u32 *codes = address<const u32>(w, 4) + (long long)p.row * integer(w, 5);
    const float *values = address<const float>(w, 6), *of_numbers = address<const float>(w, 11);
    const float *bias = address<const float>(w, 12);
    const float *x = row_of(tensor(w, 7), 0, p.row);
    float *y = row_of(tensor(w, 13), 0, p.row);
    EACH_COLUMN {
        float sum = bias ? bias[c] : 0.0f;
        for (int i = 0; values && i < integer(w, 5); i++)
            sum += values[(long long)codes[i] * width + c];
        for (int i = 0; of_numbers && i < integer(w, 10); i++)
            sum += x[i] * of_numbers[i * width + c];
        y[c] = sum;
    }
}
// Gradients of the weights of values. The width is C·K. 4 codes, 5 C, 6 dy (3), 9 K, 10 gradient.
KERNEL(linear_values) {
    EACH_ROW
    const u32 *codes = address<const u32>(w, 4) + (long long)p.row * integer(w, 5);
    const float *dy = row_of(tensor(w, 6), 0, p.row);
    const int K = integer(w, 9);
    EACH_COLUMN ADD(address<float>(w, 10) + (long long)codes[c / K] * K + c % K, dy[c % K]);
}
// Gradients of the weights of numbers, then of the bias. The width is (N + 1)·K. 4 numbers (3), 7 dy (3), 10 N, 11 K,
// 12 gradient of the weights or none, 13 of the bias or none.
KERNEL(linear_sums) {
    EACH_SUM
    const Tensor x = tensor(w, 4), dy = tensor(w, 7);
    const int N = integer(w, 10), K = integer(w, 11);
    const int number = s.column / K, output = s.column % K;
    float *to = number < N ? address<float>(w, 12) : address<float>(w, 13);
    if (!to)
        return;
    double sum = 0.0;
    EACH_SUMMED {
        double d = row_of(dy, 0, r)[output];
        sum += number < N ? d * row_of(x, 0, r)[number] : d;
    }
    ADD(to + (number < N ? s.column : output), (float)sum);
}

// ---------------------------------------------------------------------------------------------------------------------
// Outputs, losses, slopes

DEVICE float output_of(float z, int sigmoid, float scale) { return sigmoid ? scale / (1.0f + expf(-z)) : z; }

// Copies rows of numbers [B x N], normalised where there are statistics: means, then variances. The width is N. 4 numbers,
// 5 statistics or none, 6 copies (3).
KERNEL(normalised) {
    EACH_ROW
    const float *from = address<const float>(w, 4) + (long long)p.row * width;
    const double *statistics = address<const double>(w, 5);
    const Tensor to = tensor(w, 6);
    EACH_COLUMN {
        float x = from[c];
        if (statistics)
            x = (float)(((double)x - statistics[c]) * (1.0 / sqrt(statistics[width + c] + 1e-3)));
        row_of(to, 0, p.row)[c] = x;
    }
}

// Outputs of the lanes side by side, [B x M·K], or their mean, [B x K]. The width is K. 4 z (3), 7 lanes, 8 mean flag,
// 9 sigmoid flag, 10 its scale, 11 outputs.
KERNEL(outputs) {
    EACH_ROW
    const Tensor z = tensor(w, 4);
    const int lanes = integer(w, 7), sigmoid = integer(w, 9);
    const bool mean = integer(w, 8);
    const float scale = real(w, 10);
    float *to = address<float>(w, 11) + (long long)p.row * width * (mean ? 1 : lanes);
    EACH_COLUMN {
        float sum = 0.0f;
        for (int lane = 0; lane < lanes; lane++) {
            float of = row_of(z, lane, p.row)[c];
            sum += of;
            if (!mean)
                to[lane * width + c] = output_of(of, sigmoid, scale);
        }
        if (mean)
            to[c] = output_of(sum * (1.0f / lanes), sigmoid, scale);
    }
}

// Gradients with respect to z, before the output's activation, from those with respect to outputs, [B x M·K]. 4 z (3),
// 7 gradients of outputs, 8 lanes, 9 sigmoid flag, 10 its scale, 11 dz (3).
KERNEL(slopes) {
    EACH_ROW
    const Tensor z = tensor(w, 4), dz = tensor(w, 11);
    const int lanes = integer(w, 8), sigmoid = integer(w, 9);
    const float scale = real(w, 10);
    const float *from = address<const float>(w, 7) + (long long)p.row * width * lanes;
    EACH_COLUMN for (int lane = 0; lane < lanes; lane++) {
        float slope = from[lane * width + c];
        if (sigmoid) {
            float y = output_of(row_of(z, lane, p.row)[c], sigmoid, scale);
            slope *= y * (1.0f - y / scale);
        }
        row_of(dz, lane, p.row)[c] = slope;
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Paths of explained rows: see network/plan/paths.rs. Row `base` is the baseline. clock[0] is the step, of `S` steps.

// Moves a value to the step's point of each path. 4 ends (3), 7 x (3), 10 base, 11 clock, 12 S.
KERNEL(path_point) {
    EACH_ROW
    const Tensor ends = tensor(w, 4);
    const float *end = row_of(ends, p.lane, p.row), *start = row_of(ends, p.lane, integer(w, 10));
    float *x = row_of(tensor(w, 7), p.lane, p.row);
    const float share = (float)((address<const int>(w, 11)[0] + 0.5) / integer(w, 12));
    EACH_COLUMN x[c] = start[c] + share * (end[c] - start[c]);
}

// Gradients of each row's chosen output, of the mean of the lanes, with respect to z; sums the slopes of its activation and
// advances the clock. The width is K. 4 z (3), 7 lanes, 8 chosen outputs, 9 sigmoid flag, 10 its scale, 11 dz (3), 14 sums
// of slopes, 15 clock.
KERNEL(path_slopes) {
    EACH_ROW
    const Tensor z = tensor(w, 4), dz = tensor(w, 11);
    const int lanes = integer(w, 7), chosen = (int)address<const u32>(w, 8)[p.row];
    const float scale = real(w, 10);
    EACH_COLUMN {
        float slope = c == chosen ? 1.0f : 0.0f;
        if (c == chosen && integer(w, 9)) {
            float sum = 0.0f;
            for (int lane = 0; lane < lanes; lane++)
                sum += row_of(z, lane, p.row)[c];
            float y = output_of(sum * (1.0f / lanes), 1, scale);
            slope = y * (1.0f - y / scale);
        }
        if (c == chosen)
            address<float>(w, 14)[p.row] += slope;
        for (int lane = 0; lane < lanes; lane++)
            row_of(dz, lane, p.row)[c] = slope * (1.0f / lanes);
    }
    if (BLOCK == 0 && THREAD == 0)
        address<int>(w, 15)[0] += 1;
}

// Writes the attributions of the linear part to each input, then the chosen output of the row and of the baseline. The width
// is C + N + 2. 4 codes, 5 C, 6 weights of values or none, 7 ends of numbers (3), 10 N, 11 weights of numbers or none, 12 K,
// 13 chosen outputs, 14 sums of slopes, 15 S, 16 outputs [B x K], 17 base, 18 attributions [B x (C + N + 2)].
KERNEL(path_linear) {
    EACH_ROW
    const int C = integer(w, 5), N = integer(w, 10), K = integer(w, 12), base = integer(w, 17);
    const u32 *codes = address<const u32>(w, 4);
    const float *values = address<const float>(w, 6), *of_numbers = address<const float>(w, 11);
    const Tensor ends = tensor(w, 7);
    const int chosen = (int)address<const u32>(w, 13)[p.row];
    const double slope = (double)address<const float>(w, 14)[p.row] / integer(w, 15);
    double *to = address<double>(w, 18) + (long long)p.row * width;
    EACH_COLUMN {
        double x = 0.0;
        if (c >= C + N) {
            x = address<const float>(w, 16)[(long long)(c == C + N ? p.row : base) * K + chosen];
        } else if (c < C && values) {
            float end = values[(long long)codes[(long long)p.row * C + c] * K + chosen];
            x = slope * ((double)end - values[(long long)codes[(long long)base * C + c] * K + chosen]);
        } else if (c >= C && of_numbers) {
            float distance = row_of(ends, 0, p.row)[c - C] - row_of(ends, 0, base)[c - C];
            x = slope * distance * of_numbers[(c - C) * K + chosen];
        }
        to[c] = x;
    }
}

// Adds the attributions of a value that moves to inputs, from the gradients that were summed over the steps. The width is the
// number of these inputs; input i has the columns from bounds[i] to bounds[i + 1]. 4 ends (3), 7 sums (3), 10 lanes of the
// sums, 11 base, 12 bounds, 13 first input, 14 row stride of attributions, 15 S, 16 attributions.
KERNEL(path_sums) {
    EACH_ROW
    const Tensor ends = tensor(w, 4), sums = tensor(w, 7);
    const int base = integer(w, 11);
    const u32 *bounds = address<const u32>(w, 12);
    double *to = address<double>(w, 16) + (long long)p.row * integer(w, 14) + integer(w, 13);
    EACH_COLUMN {
        double sum = 0.0;
        for (int lane = 0; lane < integer(w, 10); lane++) {
            const float *end = row_of(ends, lane, p.row), *start = row_of(ends, lane, base);
            const float *by = row_of(sums, lane, p.row);
            for (u32 at = bounds[c]; at < bounds[c + 1]; at++)
                sum += (double)(end[at] - start[at]) * by[at];
        }
        to[c] += sum / integer(w, 15);
    }
}

// In the order of `losses` in network/plan/step.rs.
enum { MAE, MSE, HUBER, QUANTILE, QUANTILES, TWEEDIE, LOG_LOSS, FOCAL };
DEVICE double value_of(int kind, double of, double e) {
    double a = e < 0.0 ? -e : e;
    switch (kind) {
    case MAE: return a;
    case HUBER: return a <= of ? 0.5 * e * e : of * (a - 0.5 * of);
    case QUANTILE: return -of * e > (1.0 - of) * e ? -of * e : (1.0 - of) * e;
    default: return e * e;
    }
}
DEVICE double slope_by(int kind, double of, double e) {
    switch (kind) {
    case MAE: return e > 0.0 ? 1.0 : (e < 0.0 ? -1.0 : e);
    case HUBER: return e > of ? of : (e < -of ? -of : e);
    case QUANTILE: return e == 0.0 ? 0.0 : (e < 0.0 ? -of : 1.0 - of);
    default: return 2.0 * e;
    }
}
DEVICE double deviance(double power, double log_mean, double y, double *slope) {
    double mean = exp(log_mean);
    if (power == 1.0) {
        *slope = 2.0 * (mean - y);
        return 2.0 * ((y > 0.0 ? y * (log(y) - log_mean) : 0.0) - y + mean);
    }
    if (power == 2.0) {
        double ratio = y / mean;
        *slope = 2.0 * (1.0 - ratio);
        return 2.0 * (ratio - log(ratio) - 1.0);
    }
    double first = 1.0 - power, second = 2.0 - power;
    double of_first = exp(first * log_mean), of_second = exp(second * log_mean);
    double of_y = y > 0.0 ? pow(y, second) : 0.0;
    *slope = 2.0 * (of_second - y * of_first);
    return 2.0 * (of_y / (first * second) - y * of_first / first + of_second / second);
}

// A lane's outputs of a row, before the activation.
struct Outputs {
    const float *z;
    int sigmoid;
    float scale;
};
DEVICE double output(const Outputs &y, int k) { return output_of(y.z[k], y.sigmoid, y.scale); }

// Returns the log loss or focal loss of a row whose label is a class. Writes its gradient times `share` to `dz`.
DEVICE double of_class(const Outputs &y, int K, int label, int focal, double gamma, double share, float *dz) {
    double largest = 0.0, all = 0.0, loss;
    if (K == 1) {
        double z = output(y, 0), a = z < 0.0 ? -z : z;
        loss = (z > 0.0 ? z : 0.0) + log1p(exp(-a)) - label * z;
    } else {
        largest = output(y, 0);
        for (int k = 1; k < K; k++)
            largest = output(y, k) > largest ? output(y, k) : largest;
        for (int k = 0; k < K; k++)
            all += exp(output(y, k) - largest);
        loss = largest + log(all) - output(y, label);
    }
    double steep = 1.0, value = loss;
    if (focal) {
        double p = exp(-loss), rest = -expm1(-loss);
        double scale = pow(rest, gamma);
        steep = scale + (rest > 0.0 ? gamma * pow(rest, gamma - 1.0) * p * loss : 0.0);
        value = scale * loss;
    }
    for (int k = 0; k < K; k++) {
        double of = K == 1 ? 1.0 / (1.0 + exp(-output(y, 0))) - label
                           : exp(output(y, k) - largest) / all - (k == label ? 1.0 : 0.0);
        dz[k] = (float)(share * steep * of);
    }
    return value;
}

// Losses of the rows of a piece and their gradients, one thread per row. 4 z (3), 7 dz (3), 10 lanes, 11 kind, 12 its
// parameters, 13 K, 14 labels, 15 L, 16 weights of labels or none, 17 weights, 18 folds or none, 19 statistics, 20 N,
// 21 sigmoid flag, 22 its scale, 23 number of lanes that a row trains, 24 partials: [blocks] sums of losses.
BLOCK_KERNEL(losses) {
    SHARED double sums[MOST_THREADS];
    const int rows = ROWS, r = BLOCK * THREADS + THREAD;
    const Tensor z = tensor(w, 4), dz = tensor(w, 7);
    const int lanes = integer(w, 10), kind = integer(w, 11), K = integer(w, 13), L = integer(w, 15);
    const double *of = address<const double>(w, 12), *of_labels = address<const double>(w, 16);
    const float weight = r < rows ? address<const float>(w, 17)[r] : -1.0f;
    const u32 *folds = address<const u32>(w, 18);
    const double all = address<const double>(w, 19)[2 * integer(w, 20) + 1];
    const int trained = integer(w, 23);
    // A step whose rows all have weight 0 changes nothing.
    const double share = all > 0.0 ? 1.0 / all * lanes / trained : 0.0;
    double total = 0.0;
    for (int lane = 0; r < rows && lane < lanes; lane++) {
        float *to = row_of(dz, lane, r);
        Outputs y;
        y.z = row_of(z, lane, r);
        y.sigmoid = integer(w, 21);
        y.scale = real(w, 22);
        if (weight < 0.0f || (folds && folds[r] == (u32)lane)) {
            for (int k = 0; k < K; k++)
                to[k] = 0.0f;
            continue;
        }
        const float *labels = address<const float>(w, 14) + (long long)r * L;
        const double times = (double)weight * share;
        double loss = 0.0;
        if (kind == LOG_LOSS || kind == FOCAL)
            loss = of_class(y, K, (int)labels[0], kind == FOCAL, of[0], times, to);
        else
            for (int k = 0; k < K; k++) {
                double label = labels[L == 1 ? 0 : k];
                double own = L > 1 && of_labels ? of_labels[k] : 1.0, slope, value;
                if (kind == TWEEDIE) {
                    value = deviance(of[0], output(y, k), label, &slope);
                } else {
                    double e = output(y, k) - label, by = kind == QUANTILES ? of[k] : of[0];
                    int as = kind == QUANTILES ? (int)QUANTILE : kind;
                    value = value_of(as, by, e);
                    slope = slope_by(as, by, e);
                    if (kind == QUANTILES)
                        own = 1.0 / K;
                }
                loss += own * value;
                to[k] = (float)(times * own * slope);
            }
        total += weight * loss;
        if (y.sigmoid)
            for (int k = 0; k < K; k++) {
                float of_z = output_of(y.z[k], 1, y.scale);
                to[k] *= of_z * (1.0f - of_z / y.scale);
            }
    }
    block_sum(sums, total / trained);
    if (THREAD == 0)
        address<double>(w, 24)[BLOCK] = sums[0];
}

// ---------------------------------------------------------------------------------------------------------------------
// The optimizer

// Sets a gradient to zero. 0 gradient, 1 length.
KERNEL(clear) {
    long long at = (long long)BLOCK * THREADS + THREAD;
    if (at < (long long)w.at[1])
        address<float>(w, 0)[at] = 0.0f;
}

// Checks the gradient. 0 gradient, 1 length, 2 partials: [blocks x 2]: the sum of squares, and a non-finite component, or 0
// if there is none.
BLOCK_KERNEL(check) {
    SHARED double sums[MOST_THREADS];
    SHARED float bad;
    const float *gradient = address<const float>(w, 0);
    const long long len = (long long)w.at[1];
    if (THREAD == 0)
        bad = 0.0f;
    BARRIER;
    double sum = 0.0;
    for (long long at = (long long)BLOCK * THREADS + THREAD; at < len; at += (long long)BLOCKS * THREADS) {
        float g = gradient[at];
        sum += (double)g * g;
        if (!is_finite(g))
            bad = g;
    }
    block_sum(sums, sum);
    if (THREAD == 0) {
        address<double>(w, 2)[2 * BLOCK] = sums[0];
        address<double>(w, 2)[2 * BLOCK + 1] = bad;
    }
}

// Totals of a step: rows, weight, loss, a non-finite number of the gradient or 0, checksum, and whether it was applied;
// and this device's share of rows and checksum.
struct Total {
    double rows, weight, loss, bad;
    u64 checksum;
    u64 taken;
    double own_rows;
    u64 own_checksum;
};

// Columns of a step's numbers: see `mod numbers` and `Update::numbers` in network/update.rs.
enum { RATE, KEEP_0, KEEP_1, TAKE_0, TAKE_1, EPSILON, DECAYED, KEPT, L1, L2, CLIP_VALUE, MOMENTUM, RHO, CLIP_NORM };
enum { ADAM, SGD, MOMENTUM_SGD, NESTEROV, ADAGRAD, RMS_PROP, RMS_MOMENTUM, FTRL };

// Updates weights by their gradient; a step is atomic. The flags of a weight: 1 if it is penalized, 2 if its gradient is
// accumulated, and so is cleared here.
// 0 clock, 1 numbers [S x 16], 2 rule, 3 weights, 4 gradient, 5 flags, 6 length, 7 first slot, 8 second, 9 average or
// none, 10 partials of check, 11 their count, 12 partials of losses or none, 13 their count, 14 statistics, 15 N,
// 16 running statistics or none, 17 totals [S], 18 unit of the loss.
BLOCK_KERNEL(update) {
    SHARED double sums[MOST_THREADS];
    SHARED double bad;
    int *clock = address<int>(w, 0);
    const int step = clock[1];
    const float *n = address<const float>(w, 1) + 16 * step;
    const double *checks = address<const double>(w, 10), *losses = address<const double>(w, 12);
    if (THREAD == 0)
        bad = 0.0;
    BARRIER;
    for (int b = THREAD; b < integer(w, 11); b += THREADS)
        if (checks[2 * b + 1] != 0.0)
            bad = checks[2 * b + 1];
    double sum = 0.0;
    for (int b = THREAD; losses && b < integer(w, 13); b += THREADS)
        sum += losses[b];
    block_sum(sums, sum);
    const double loss = sums[0];
    BARRIER;
    sum = 0.0;
    for (int b = THREAD; b < integer(w, 11); b += THREADS)
        sum += checks[2 * b];
    block_sum(sums, sum);
    const double norm = sqrt(sums[0]);
    const bool takes = clock[2] == 0 && bad == 0.0 && is_finite(loss * precise(w, 18));
    if (losses && BLOCK == 0) {
        const int N = integer(w, 15);
        const double *statistics = address<const double>(w, 14);
        double *running = address<double>(w, 16);
        if (THREAD == 0 && clock[2] == 0) {
            Total *total = address<Total>(w, 17) + step;
            total->rows = statistics[2 * N];
            total->weight = statistics[2 * N + 1];
            total->checksum = ((const u64 *)statistics)[2 * N + 2];
            total->own_rows = statistics[2 * N + 3];
            total->own_checksum = ((const u64 *)statistics)[2 * N + 4];
            total->loss = loss;
            total->bad = bad;
            total->taken = takes;
        }
        for (int at = THREAD; takes && running && at < 2 * N; at += THREADS)
            running[at] = 0.99 * running[at] + (1.0 - 0.99) * statistics[at];
    }
    // All threads have read clock[2] before it changes; other blocks reach the same decision from what they read.
    BARRIER;
    if (!takes) {
        if (BLOCK == 0 && THREAD == 0)
            clock[2] = 1;
        return;
    }
    float shorter = 1.0f;
    const double most_norm = n[CLIP_NORM];
    if (norm > most_norm)
        shorter = (float)(most_norm / norm);
    const float most = n[CLIP_VALUE], rate = n[RATE];
    const int rule = integer(w, 2);
    float *weights = address<float>(w, 3), *gradient = address<float>(w, 4);
    const unsigned char *flags = address<const unsigned char>(w, 5);
    float *first = address<float>(w, 7), *second = address<float>(w, 8), *average = address<float>(w, 9);
    const long long len = (long long)w.at[6];
    for (long long i = (long long)BLOCK * THREADS + THREAD; i < len; i += (long long)BLOCKS * THREADS) {
        const int flag = flags[i];
        float g = gradient[i] * shorter, x = weights[i];
        if (flag & 2)
            gradient[i] = 0.0f;
        g = g > most ? most : (g < -most ? -most : g);
        if ((flag & 1) && rule != FTRL)
            g += 2.0f * n[L2] * x + (x > 0.0f ? n[L1] : (x < 0.0f ? -n[L1] : 0.0f));
        switch (rule) {
        case ADAM: {
            float m = n[KEEP_0] * first[i] + n[TAKE_0] * g;
            float v = n[KEEP_1] * second[i] + n[TAKE_1] * (g * g);
            first[i] = m;
            second[i] = v;
            x = (flag & 1 ? n[DECAYED] : 1.0f) * x - rate * m / (sqrtf(v) + n[EPSILON]);
            break;
        }
        case SGD: x -= rate * g; break;
        case MOMENTUM_SGD:
        case NESTEROV: {
            float change = rate * g, v = n[MOMENTUM] * first[i] - change;
            first[i] = v;
            x += rule == NESTEROV ? n[MOMENTUM] * v - change : v;
            break;
        }
        case ADAGRAD: {
            float a = first[i] + g * g;
            first[i] = a;
            x -= rate * g / sqrtf(a + n[EPSILON]);
            break;
        }
        case RMS_PROP:
        case RMS_MOMENTUM: {
            float a = n[RHO] * first[i] + (1.0f - n[RHO]) * (g * g);
            first[i] = a;
            float change = rate * g / sqrtf(a + n[EPSILON]);
            if (rule == RMS_MOMENTUM) {
                change = n[MOMENTUM] * second[i] + change;
                second[i] = change;
            }
            x -= change;
            break;
        }
        default: {
            float l1 = flag & 1 ? n[L1] : 0.0f, l2 = flag & 1 ? n[L2] : 0.0f;
            float before = sqrtf(first[i]), square = first[i] + g * g, root = sqrtf(square);
            float z = second[i] + g - (root - before) / rate * x;
            first[i] = square;
            second[i] = z;
            float kept = z > l1 ? l1 : (z < -l1 ? -l1 : z);
            float below = root / rate + 2.0f * l2;
            // A weight that never had a gradient, such as padding, stays.
            x = below > 0.0f ? (kept - z) / below : x;
        }
        }
        weights[i] = x;
        if (average)
            average[i] = n[KEPT] * average[i] + (1.0f - n[KEPT]) * x;
    }
}
