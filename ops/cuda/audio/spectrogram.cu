// Short-time Fourier transforms (ops/audio/spectrogram.py). Two windows make one complex signal; a block transforms
// `pairs` of them in place, decimating in frequency, and leaves frequency k at place[k].

enum { LARGEST_RADIX = 13, SHARED = 2048, MOST_PAIRS = 4 };

__device__ inline float2 times(float2 a, float2 b) { return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
__device__ inline float2 plus(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ inline float2 minus(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }

// The transform of the `radix` numbers `step` apart at `at`; all but the first are turned by `turns` then.
__device__ inline void butterfly(float2* at, int step, int radix, const float2* roots, const float2* turns) {
    if (radix == 4) {
        const float2 a = plus(at[0], at[2 * step]), b = minus(at[0], at[2 * step]);
        const float2 c = plus(at[step], at[3 * step]), d = minus(at[step], at[3 * step]);
        at[0] = plus(a, c);
        at[step] = times(make_float2(b.x + d.y, b.y - d.x), turns[0]);
        at[2 * step] = times(minus(a, c), turns[1]);
        at[3 * step] = times(make_float2(b.x - d.y, b.y + d.x), turns[2]);
        return;
    }
    if (radix == 2) {
        const float2 a = at[0], b = at[step];
        at[0] = plus(a, b);
        at[step] = times(minus(a, b), turns[0]);
        return;
    }
    float2 x[LARGEST_RADIX];
    for (int q = 0; q < radix; ++q) x[q] = at[q * step];
    for (int s = 0; s < radix; ++s) {
        float2 sum = x[0];
        for (int q = 1, m = s; q < radix; ++q, m = m + s >= radix ? m + s - radix : m + s) sum = plus(sum, times(x[q], roots[m]));
        at[s * step] = s ? times(sum, turns[s - 1]) : sum;
    }
}

template <typename In>
struct Signal {
    const In* data;
    int n, reflect;
    float scale;

    __device__ float operator[](long long i) const {
        if (i < 0 || i >= n) {
            if (!reflect || n == 0) return 0.0f;
            const long long period = 2LL * (n - 1);
            i = n == 1 ? 0 : (i < 0 ? -i : i) % period;
            if (i >= n) i = period - i;
        }
        return static_cast<float>(data[i]) * scale;
    }
};

// What becomes of the spectra of a block where MEL: sums of runs of them (filter_bank of features.cu), and, unless
// `factor` is 0, their decibels.
struct Bands {
    const int* filters;  // [bands][3] first frequency, how many, first weight
    const float* weights;
    int bands;
    float scale, factor, least;

    __device__ float operator()(const float* powers, int band) const {
        const int* filter = filters + 3 * band;
        const float *at = powers + filter[0], *weight = weights + filter[2];
        float total = 0;
        for (int k = 0; k < filter[1]; ++k) total += weight[k] * at[k];
        return factor == 0 ? total : log2f(fmaxf(least, total * scale)) * factor;
    }
};

// grid (groups of windows, samples). `scratch` holds a transform for each block where they do not fit into SHARED.
template <typename In, bool FITS, bool MEL>
__global__ void spectrogram(const In* data, const long long* base, const int* lengths, const int* frames,
                            const float* window, const int* radices, const float2* roots, const float2* twiddles,
                            const int* place, int passes, int size, int width, int before, int step, int pairs,
                            int reflect, float scale, int leveled, float emphasis, int magnitudes, int frequency_first,
                            float2* scratch, float* out, const long long* out_base, const int* filters,
                            const float* weights, int bands, float loudness, float factor, float least) {
    __shared__ float2 shared[FITS ? SHARED : 1];
    __shared__ double partial[2 * MOST_PAIRS][32];
    __shared__ float powers[MEL ? SHARED + 2 * MOST_PAIRS : 1];  // bins of one window after the other
    const int sample = blockIdx.y, count = frames[sample], bins = size / 2 + 1;
    const Signal<In> signal = {data + base[sample], lengths[sample], reflect, scale};
    const long long block = static_cast<long long>(blockIdx.y) * gridDim.x + blockIdx.x;
    float2* work = FITS ? shared : scratch + block * size;
    float* target = out + out_base[sample];
    for (int first = blockIdx.x * 2 * pairs; first < count; first += gridDim.x * 2 * pairs) {
        if (leveled) {
            for (int i = threadIdx.x; i < 2 * pairs * 32; i += blockDim.x) {
                double sum = 0;
                const long long from = static_cast<long long>(first + i / 32) * step - before;
                if (first + i / 32 < count)
                    for (int k = i % 32; k < width; k += 32) sum += signal[from + k];
                partial[i / 32][i % 32] = sum;
            }
            __syncthreads();
            for (int i = threadIdx.x; i < 2 * pairs; i += blockDim.x) {
                double sum = 0;
                for (int k = 0; k < 32; ++k) sum += partial[i][k];
                partial[i][0] = sum / width;
            }
            __syncthreads();
        }
        for (int i = threadIdx.x; i < pairs * size; i += blockDim.x) {
            const int pair = i / size, k = i - pair * size;
            float two[2] = {0.0f, 0.0f};
            for (int half = 0; half < 2; ++half) {
                const int frame = first + 2 * pair + half;
                if (k >= width || frame >= count) continue;
                const long long at = static_cast<long long>(frame) * step - before + k;
                float x = signal[at];
                if (leveled) {
                    const float mean = static_cast<float>(partial[2 * pair + half][0]);
                    x -= mean;
                    x -= emphasis * (k ? signal[at - 1] - mean : x);
                }
                two[half] = x * window[k];
            }
            work[i] = make_float2(two[0], two[1]);
        }
        __syncthreads();
        int length = size;
        const float2* turns = twiddles;
        for (int pass = 0; pass < passes; ++pass) {
            const int radix = radices[pass], part = length / radix, each = size / radix;
            for (int i = threadIdx.x; i < pairs * each; i += blockDim.x) {
                const int pair = i / each, rest = i - pair * each, block_of = rest / part, j = rest - block_of * part;
                butterfly(work + pair * size + block_of * length + j, part, radix, roots + pass * LARGEST_RADIX,
                          turns + j * (radix - 1));
            }
            turns += part * (radix - 1);
            length = part;
            __syncthreads();
        }
        // Neighbouring threads write neighbouring places.
        for (int i = threadIdx.x; i < 2 * pairs * bins; i += blockDim.x) {
            const int k = frequency_first ? i / (2 * pairs) : i % bins;
            const int frame = frequency_first ? i % (2 * pairs) : i / bins;
            if (first + frame >= count) continue;
            const float2* whole = work + frame / 2 * size;
            const float2 a = whole[place[k]], b = whole[place[k ? size - k : 0]];
            const float re = frame % 2 ? a.y + b.y : a.x + b.x, im = frame % 2 ? a.x - b.x : a.y - b.y;
            float value = 0.25f * (re * re + im * im);
            if (magnitudes) value = sqrtf(value);
            const long long t = first + frame;
            if (MEL) powers[frame * bins + k] = value;
            else target[frequency_first ? static_cast<long long>(k) * count + t : t * bins + k] = value;
        }
        __syncthreads();
        if (!MEL) continue;
        const Bands of = {filters, weights, bands, loudness, factor, least};
        for (int i = threadIdx.x; i < 2 * pairs * bands; i += blockDim.x) {
            const int band = frequency_first ? i / (2 * pairs) : i % bands;
            const int frame = frequency_first ? i % (2 * pairs) : i / bands;
            const long long t = first + frame;
            if (t >= count) continue;
            target[frequency_first ? static_cast<long long>(band) * count + t : t * bands + band] =
                of(powers + frame * bins, band);
        }
        __syncthreads();
    }
}
