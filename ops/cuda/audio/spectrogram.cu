// Short-time Fourier transforms (ops/audio/spectrogram.py). Two windows form one complex signal; a block transforms
// `pairs` of these in place, by decimation in frequency, and leaves frequency k at place[k].

enum { LARGEST_RADIX = 13, SHARED = 2048, MOST_PAIRS = 4 };

__device__ inline float2 times(float2 a, float2 b) { return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
__device__ inline float2 plus(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ inline float2 minus(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }

// Transform four numbers in place.
__device__ inline void four(float2& x0, float2& x1, float2& x2, float2& x3) {
    const float2 a = plus(x0, x2), b = minus(x0, x2), c = plus(x1, x3), d = minus(x1, x3);
    x0 = plus(a, c);
    x1 = make_float2(b.x + d.y, b.y - d.x);
    x2 = minus(a, c);
    x3 = make_float2(b.x - d.y, b.y + d.x);
}

// Numbers of a block. In shared memory there is a gap after every eight: without it, threads whose numbers are eight
// apart would wait for the same banks.
template <bool FITS>
struct Numbers {
    float2* first;

    __device__ float2& operator[](int i) const { return first[FITS ? i + (i >> 3) : i]; }
};

// Transform the `radix` numbers that are `step` apart from `at` on; then multiply all but the first by `turns`.
template <bool FITS>
__device__ inline void butterfly(Numbers<FITS> all, int at, int step, int radix, const float2* roots,
                                 const float2* turns) {
    if (radix == 8) {
        const float half = 0.70710678118654752f;
        float2 even[4], odd[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            const float2 a = all[at + q * step], b = all[at + (q + 4) * step];
            even[q] = plus(a, b);
            odd[q] = minus(a, b);
        }
        odd[1] = make_float2(half * (odd[1].x + odd[1].y), half * (odd[1].y - odd[1].x));
        odd[2] = make_float2(odd[2].y, -odd[2].x);
        odd[3] = make_float2(half * (odd[3].y - odd[3].x), -half * (odd[3].x + odd[3].y));
        four(even[0], even[1], even[2], even[3]);
        four(odd[0], odd[1], odd[2], odd[3]);
        all[at] = even[0];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            if (q) all[at + 2 * q * step] = times(even[q], turns[2 * q - 1]);
            all[at + (2 * q + 1) * step] = times(odd[q], turns[2 * q]);
        }
        return;
    }
    if (radix == 4) {
        float2 a = all[at], b = all[at + step], c = all[at + 2 * step], d = all[at + 3 * step];
        four(a, b, c, d);
        all[at] = a;
        all[at + step] = times(b, turns[0]);
        all[at + 2 * step] = times(c, turns[1]);
        all[at + 3 * step] = times(d, turns[2]);
        return;
    }
    if (radix == 2) {
        const float2 a = all[at], b = all[at + step];
        all[at] = plus(a, b);
        all[at + step] = times(minus(a, b), turns[0]);
        return;
    }
    float2 x[LARGEST_RADIX];
    for (int q = 0; q < radix; ++q) x[q] = all[at + q * step];
    for (int s = 0; s < radix; ++s) {
        float2 sum = x[0];
        for (int q = 1, m = s; q < radix; ++q, m = m + s >= radix ? m + s - radix : m + s) sum = plus(sum, times(x[q], roots[m]));
        all[at + s * step] = s ? times(sum, turns[s - 1]) : sum;
    }
}

// Division of numbers that are not negative; most divisors here are powers of two.
struct Divisor {
    int by, shift;

    __device__ explicit Divisor(int by_) : by(by_), shift(by_ & (by_ - 1) ? -1 : 31 - __clz(by_)) {}
    __device__ int operator()(int i) const { return shift >= 0 ? i >> shift : i / by; }
};

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

// Return the power of one of two windows that formed one complex signal; `a` and `b`: its values at a frequency and at
// the negative frequency.
__device__ inline float power(float2 a, float2 b, int half) {
    const float re = half ? a.y + b.y : a.x + b.x, im = half ? a.x - b.x : a.y - b.y;
    return 0.25f * (re * re + im * im);
}

// Steps after the spectra of a block if MEL: sums of runs of frequencies (as filter_bank of features.cu) and, unless
// `factor` is 0, their decibels.
struct Bands {
    const int* filters;  // [bands][3]: first frequency, number of frequencies, index of the first weight
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

// grid (groups of windows, samples). `scratch` holds one transform per block if it does not fit into SHARED.
template <typename In, bool FITS, bool MEL>
__global__ void spectrogram(const In* data, const long long* base, const int* lengths, const int* frames,
                            const float* window, const int* radices, const float2* roots, const float2* twiddles,
                            const int* place, int passes, int size, int width, int before, int step, int pairs,
                            int reflect, float scale, int leveled, float emphasis, int magnitudes, int frequency_first,
                            float2* scratch, float* out, const long long* out_base, const int* filters,
                            const float* weights, int bands, float loudness, float factor, float least) {
    __shared__ float2 shared[FITS ? SHARED + SHARED / 8 : 1];
    __shared__ double partial[2 * MOST_PAIRS][32];
    // flags of windows that are not silent: two windows share a transform, and its rounding errors
    __shared__ int sounds[2 * MOST_PAIRS];
    __shared__ float powers[MEL ? SHARED + 2 * MOST_PAIRS : 1];  // bins of one window after the other
    const int sample = blockIdx.y, count = frames[sample], bins = size / 2 + 1;
    const Signal<In> signal = {data + base[sample], lengths[sample], reflect, scale};
    const long long block = static_cast<long long>(blockIdx.y) * gridDim.x + blockIdx.x;
    const Divisor by_size(size), by_frames(2 * pairs), by_bins(bins), by_bands(MEL ? bands : 1);
    const Numbers<FITS> work = {FITS ? shared : scratch + block * size};
    float* target = out + out_base[sample];
    for (int first = blockIdx.x * 2 * pairs; first < count; first += gridDim.x * 2 * pairs) {
        for (int i = threadIdx.x; i < 2 * pairs; i += blockDim.x) sounds[i] = 0;
        __syncthreads();
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
        const long long low = static_cast<long long>(first) * step - before;
        const bool inside = !leveled && low >= 0 && first + 2 * pairs <= count &&
                            low + static_cast<long long>(2 * pairs - 1) * step + width <= signal.n;
        for (int i = threadIdx.x; i < pairs * size; i += blockDim.x) {
            const int pair = by_size(i), k = i - pair * size;
            if (inside) {
                float2 both = make_float2(0.0f, 0.0f);
                if (k < width) {
                    const In* at = signal.data + low + (2 * pair * step + k);
                    both.x = static_cast<float>(at[0]) * scale * window[k];
                    both.y = static_cast<float>(at[step]) * scale * window[k];
                }
                if (both.x != 0.0f) sounds[2 * pair] = 1;
                if (both.y != 0.0f) sounds[2 * pair + 1] = 1;
                work[i] = both;
                continue;
            }
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
                if (two[half] != 0.0f) sounds[2 * pair + half] = 1;
            }
            work[i] = make_float2(two[0], two[1]);
        }
        __syncthreads();
        int length = size;
        const float2* turns = twiddles;
        for (int pass = 0; pass < passes; ++pass) {
            const int radix = radices[pass], part = length / radix, each = size / radix;
            const Divisor by_each(each), by_part(part);
            for (int i = threadIdx.x; i < pairs * each; i += blockDim.x) {
                const int pair = by_each(i), rest = i - pair * each, block_of = by_part(rest), j = rest - block_of * part;
                butterfly(work, pair * size + block_of * length + j, part, radix, roots + pass * LARGEST_RADIX,
                          turns + j * (radix - 1));
            }
            turns += part * (radix - 1);
            length = part;
            __syncthreads();
        }
        // Neighbouring threads write to neighbouring positions.
        if (MEL) {
            for (int i = threadIdx.x; i < pairs * bins; i += blockDim.x) {
                const int pair = by_bins(i), k = i - pair * bins;
                const int whole = pair * size;
                const float2 a = work[whole + place[k]], b = work[whole + place[k ? size - k : 0]];
                for (int half = 0; half < 2; ++half) {
                    const float value = sounds[2 * pair + half] ? power(a, b, half) : 0.0f;
                    powers[(2 * pair + half) * bins + k] = magnitudes ? sqrtf(value) : value;
                }
            }
        } else {
            for (int i = threadIdx.x; i < 2 * pairs * bins; i += blockDim.x) {
                const int k = frequency_first ? by_frames(i) : i - by_bins(i) * bins;
                const int frame = frequency_first ? i - k * 2 * pairs : by_bins(i);
                if (first + frame >= count) continue;
                const int whole = frame / 2 * size;
                const float2 a = work[whole + place[k]], b = work[whole + place[k ? size - k : 0]];
                const float value = sounds[frame] ? power(a, b, frame % 2) : 0.0f;
                const long long t = first + frame;
                target[frequency_first ? static_cast<long long>(k) * count + t : t * bins + k] =
                    magnitudes ? sqrtf(value) : value;
            }
        }
        __syncthreads();
        if (!MEL) continue;
        const Bands of = {filters, weights, bands, loudness, factor, least};
        for (int i = threadIdx.x; i < 2 * pairs * bands; i += blockDim.x) {
            const int band = frequency_first ? by_frames(i) : i - by_bands(i) * bands;
            const int frame = frequency_first ? i - band * 2 * pairs : by_bands(i);
            const long long t = first + frame;
            if (t >= count) continue;
            target[frequency_first ? static_cast<long long>(band) * count + t : t * bands + band] =
                of(powers + frame * bins, band);
        }
        __syncthreads();
    }
}
