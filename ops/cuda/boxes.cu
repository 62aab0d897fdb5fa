// Boxes (ops/boxes): bb_flip and box_encoder. float32 without fused multiply-add, so that results equal the CPU's.

// grid (tiles, samples): a thread mirrors one box. `flips` [2, N]: left to right, top to bottom.
extern "C" __global__ void flip_boxes(const float* boxes, const long long* starts, const long long* counts, const int* flips,
                           int samples, int ltrb, float* out, const long long* to) {
    const int i = blockIdx.y;
    const long long k = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (k >= counts[i]) return;
    const float* box = boxes + starts[i] + 4 * k;
    float* target = out + to[i] + 4 * k;
    for (int axis = 0; axis < 2; ++axis) {
        const float a = box[axis], b = box[2 + axis];
        const float end = ltrb ? b : __fadd_rn(a, b);
        const bool turned = flips[axis * samples + i] != 0;
        const float low = turned ? __fsub_rn(1.0f, end) : a, high = turned ? __fsub_rn(1.0f, a) : end;
        target[axis] = low;
        target[2 + axis] = ltrb ? high : __fsub_rn(high, low);
    }
}

__device__ float overlap(const float* box, const float* anchor) {
    const float w = fmaxf(__fsub_rn(fminf(box[2], anchor[2]), fmaxf(box[0], anchor[0])), 0.0f);
    const float h = fmaxf(__fsub_rn(fminf(box[3], anchor[3]), fmaxf(box[1], anchor[1])), 0.0f);
    const float both = __fmul_rn(w, h);
    const float own = __fmul_rn(__fsub_rn(box[2], box[0]), __fsub_rn(box[3], box[1]));
    const float area = __fmul_rn(__fsub_rn(anchor[2], anchor[0]), __fsub_rn(anchor[3], anchor[1]));
    return __fdiv_rn(both, __fsub_rn(__fadd_rn(own, area), both));
}

// A block finds the anchor that its box overlaps most; the last one of equals. `at`: position of each box of the batch.
extern "C" __global__ void best_anchors(const float* boxes, const long long* at, const float* anchors, int count, int* best) {
    __shared__ float values[128];
    __shared__ int places[128];
    const float* box = boxes + at[blockIdx.x];
    float value = -1.0f;
    int place = 0;
    for (int j = threadIdx.x; j < count; j += blockDim.x) {
        const float v = overlap(box, anchors + 4 * j);
        if (v >= value) value = v, place = j;
    }
    values[threadIdx.x] = value;
    places[threadIdx.x] = place;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            const float other = values[threadIdx.x + half];
            const int there = places[threadIdx.x + half];
            if (other > values[threadIdx.x] || (other == values[threadIdx.x] && there > places[threadIdx.x])) {
                values[threadIdx.x] = other;
                places[threadIdx.x] = there;
            }
        }
    }
    if (threadIdx.x == 0) best[blockIdx.x] = places[0];
}

// grid (tiles, samples): a thread finds the box of one anchor. Boxes of sample i are at[first[i]] ...; `norms`: 4 means,
// 4 standard deviations.
template <typename Label>
__global__ void encode_boxes(const float* boxes, const long long* at, const long long* first, const long long* counts,
                             const Label* labels, const long long* label_at, const int* best, const float* anchors,
                             int count, float criteria, int offset, float scale, const float* norms, float* out,
                             Label* found) {
    const int i = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= count) return;
    const float* anchor = anchors + 4 * j;
    float most = -1.0f;
    long long which = 0;
    for (long long k = 0; k < counts[i]; ++k) {
        const float v = best[first[i] + k] == j ? 2.0f : overlap(boxes + at[first[i] + k], anchor);
        if (v >= most) most = v, which = k;
    }
    const bool matched = most > criteria;
    const float* box = matched ? boxes + at[first[i] + which] : anchor;
    const long long row = static_cast<long long>(i) * count + j;
    found[row] = matched ? labels[label_at[i] + which] : static_cast<Label>(0);
    for (int q = 0; q < 4; ++q) {
        const int low = q & 1, high = low + 2;
        float value = q < 2 ? __fmul_rn(__fadd_rn(box[low], box[high]), 0.5f) : __fsub_rn(box[high], box[low]);
        if (offset && !matched) {
            value = 0.0f;
        } else if (offset) {
            const float extent = __fmul_rn(__fsub_rn(anchor[high], anchor[low]), scale);
            value = __fmul_rn(value, scale);
            if (q < 2) {
                const float centre = __fmul_rn(__fmul_rn(__fadd_rn(anchor[low], anchor[high]), 0.5f), scale);
                value = __fdiv_rn(__fsub_rn(value, centre), extent);
            } else {
                value = logf(__fdiv_rn(value, extent));
            }
            value = __fdiv_rn(__fsub_rn(value, norms[q]), norms[4 + q]);
        }
        out[4 * row + q] = value;
    }
}
